/* SPDX-License-Identifier: MIT */
/* A table of text, columns as wide as their widest cell. */
#ifndef DLOCK_TABLE_H
#define DLOCK_TABLE_H

#include <stddef.h>
#include <stdio.h>

#define TABLE_COLUMNS 12

struct table {			/* zeroed, with `columns` set, = empty */
	size_t columns;
	size_t count, size;
	char *(*rows)[TABLE_COLUMNS];
	int err;		/* -ENOMEM, sticky */
};

/* Adds a row of `columns` cells; each is copied and made printable. NULL is an empty cell. */
void table_add(struct table *table, const char *const *cells);

/* Prints the rows, each behind `indent`; trailing blanks are left out. */
void table_print(const struct table *table, FILE *out, const char *indent);

void table_free(struct table *table);

#endif
