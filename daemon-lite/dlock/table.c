/* SPDX-License-Identifier: MIT */
/* Tables for people. Every cell passes text_printable(): a name cannot forge a row. */
#include "table.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "text.h"

void table_add(struct table *table, const char *const *cells)
{
	if (table->err)
		return;
	if (table->count == table->size) {
		size_t size = table->size ? 2 * table->size : 16;
		void *rows = realloc(table->rows, size * sizeof *table->rows);

		if (!rows) {
			table->err = -ENOMEM;
			return;
		}
		table->rows = rows;
		table->size = size;
	}
	memset(table->rows[table->count], 0, sizeof *table->rows);
	for (size_t i = 0; i < table->columns; i++) {
		table->rows[table->count][i] = text_printable(cells[i] ? cells[i] : "");
		if (!table->rows[table->count][i])
			table->err = -ENOMEM;
	}
	table->count++;
}

void table_print(const struct table *table, FILE *out, const char *indent)
{
	size_t width[TABLE_COLUMNS] = { 0 };

	for (size_t row = 0; row < table->count; row++)
		for (size_t i = 0; i < table->columns; i++) {
			const char *cell = table->rows[row][i];
			size_t n = cell ? text_width(cell) : 0;

			if (n > width[i])
				width[i] = n;
		}
	for (size_t row = 0; row < table->count; row++) {
		size_t pending = 0;

		fputs(indent, out);
		for (size_t i = 0; i < table->columns; i++) {
			const char *cell = table->rows[row][i] ? table->rows[row][i] : "";

			if (*cell) {
				fprintf(out, "%*s%s", (int)pending, "", cell);
				pending = 0;
			}
			pending += width[i] - text_width(cell) + 2;
		}
		fputc('\n', out);
	}
}

void table_free(struct table *table)
{
	for (size_t row = 0; row < table->count; row++)
		for (size_t i = 0; i < table->columns; i++)
			free(table->rows[row][i]);
	free(table->rows);
	memset(table, 0, sizeof *table);
}
