/* SPDX-License-Identifier: MIT */
/*
 * Can a shared library be preloaded into this program? Only the file's own
 * bytes are looked at here; set-id bits, capabilities and scripts' interpreters
 * are protect.c's matter. Byte order and layout of the file: elf(5).
 */
#ifndef DLOCK_ELF_CHECK_H
#define DLOCK_ELF_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum elf_kind {
	ELF_KIND_OTHER,		/* neither ELF nor a script */
	ELF_KIND_SCRIPT,	/* begins with "#!" */
	ELF_KIND_DAMAGED,	/* ELF, but its headers lead nowhere */
	ELF_KIND_FOREIGN,	/* ELF of the other byte order: cannot run here */
	ELF_KIND_STATIC,	/* no PT_INTERP: nothing reads LD_PRELOAD (static-pie too) */
	ELF_KIND_DYNAMIC,
	ELF_KIND_LIBRARY,	/* ET_DYN without PT_INTERP, with a SONAME or without an entry point: not a program */
};

struct elf_info {
	enum elf_kind kind;
	unsigned bits;		/* 32 or 64; 0 unless ELF */
	unsigned machine;	/* EM_* */
	char interpreter[256];	/* PT_INTERP, "" if none */
};

/* Reads len bytes at off: returns how many there were (fewer only at the end), or -errno. */
typedef long elf_read_fn(void *arg, uint64_t off, void *buf, size_t len);

/* Looks at a file through read. Returns 0 (also for damaged files), or the -errno of read. Pure but for read. */
int elf_inspect(elf_read_fn *read, void *arg, struct elf_info *ret_info);

/* A reader over a buffer and one over an open file (arg points to the descriptor). */
struct elf_buffer { const void *data; size_t len; };
elf_read_fn elf_read_buffer, elf_read_fd;

/* "x86-64", "ARM 64"… or "machine 1234" written to buf. */
const char *elf_machine_name(unsigned machine, char *buf, size_t size);

/* The #! line: interpreter and the one argument that the kernel passes on ("" if none). */
struct script_line {
	char interpreter[256];
	char argument[256];
};
/* line: the first len bytes of the file, as the kernel reads them (256 at most). 0, or -ENOEXEC if the line is
 * not one the kernel would accept. Pure. */
int script_parse(const char *line, size_t len, struct script_line *ret_script);

/*
 * The program that `env ARGUMENT SCRIPT` would run. Follows -S, options and
 * assignments. Returns 0 with its name in ret_program, -EINVAL when the
 * environment would be cleared (-i, -u LD_PRELOAD), -ENOENT when no program is
 * named. Pure.
 */
int script_env_program(const char *argument, char *ret_program, size_t size);

#endif
