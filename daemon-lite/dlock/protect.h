/* SPDX-License-Identifier: MIT */
/* Can this command be protected by a preloaded library? Every no is one sentence with what to do. */
#ifndef DLOCK_PROTECT_H
#define DLOCK_PROTECT_H

#include <stddef.h>

#include "elf_check.h"

struct refusal;

/*
 * Finds the program that execvp(name) would run. Returns 0 with its path, or
 * refuses with EXIT_NOT_FOUND or EXIT_CANNOT_EXEC.
 */
int program_find(const char *name, char *path, size_t size, struct refusal *refusal);

/*
 * Whether the program at path, or the interpreter of the script there, reads
 * LD_PRELOAD and can load the library. loader: the dynamic loader (PT_INTERP)
 * of the system's own programs, "" = do not compare. 0 or a refusal.
 */
int program_check(const char *path, const struct elf_info *library, const char *loader, struct refusal *refusal);

/*
 * The library to preload: $DLOCKSHIM_LIBRARY, else beside the dlock binary, else
 * where it was installed. Checked: a shared library that belongs to root or the
 * user and nobody else can write to, with a path that LD_PRELOAD can carry.
 */
int library_find(char *path, size_t size, struct elf_info *ret_info, struct refusal *refusal);

/* PT_INTERP of the running dlock, "" if unknown. */
void own_loader(char *buf, size_t size);

/* The file `name` beside the running dlock: 0 or -errno. */
int beside_dlock(const char *name, char *path, size_t size);

#endif
