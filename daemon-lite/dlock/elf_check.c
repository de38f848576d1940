/* SPDX-License-Identifier: MIT */
/*
 * Reading ELF headers and #! lines of files that somebody else wrote: every
 * offset is checked, nothing is trusted, nothing is allocated.
 */
#include "elf_check.h"

#include <elf.h>
#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define PHNUM_LIMIT 4096
#define DYNAMIC_LIMIT 4096

#if __BYTE_ORDER == __LITTLE_ENDIAN
#define OWN_DATA ELFDATA2LSB
#else
#define OWN_DATA ELFDATA2MSB
#endif

/* The headers of both classes brought to one form. */
struct headers {
	uint64_t phoff, entry;
	unsigned phnum, phentsize, type;
};

struct segment {
	uint32_t type;
	uint64_t offset, size;
};

static bool read_all(elf_read_fn *read, void *arg, uint64_t off, void *buf, size_t len, int *err)
{
	long n = read(arg, off, buf, len);

	if (n < 0)
		*err = (int)n;
	return n >= 0 && (size_t)n == len;
}

static bool read_segment(elf_read_fn *read, void *arg, const struct headers *headers, unsigned bits, unsigned i,
			 struct segment *ret_segment, int *err)
{
	uint64_t off = headers->phoff + (uint64_t)i * headers->phentsize;

	if (bits == 64) {
		Elf64_Phdr ph;

		if (!read_all(read, arg, off, &ph, sizeof ph, err))
			return false;
		*ret_segment = (struct segment){ ph.p_type, ph.p_offset, ph.p_filesz };
	} else {
		Elf32_Phdr ph;

		if (!read_all(read, arg, off, &ph, sizeof ph, err))
			return false;
		*ret_segment = (struct segment){ ph.p_type, ph.p_offset, ph.p_filesz };
	}
	return true;
}

/* Whether the dynamic section has a SONAME: then it is a library whatever its entry point. */
static bool has_soname(elf_read_fn *read, void *arg, const struct segment *dynamic, unsigned bits, int *err)
{
	size_t step = bits == 64 ? sizeof(Elf64_Dyn) : sizeof(Elf32_Dyn);

	for (uint64_t i = 0; i < DYNAMIC_LIMIT && (i + 1) * step <= dynamic->size; i++) {
		int64_t tag;

		if (bits == 64) {
			Elf64_Dyn entry;

			if (!read_all(read, arg, dynamic->offset + i * step, &entry, sizeof entry, err))
				return false;
			tag = entry.d_tag;
		} else {
			Elf32_Dyn entry;

			if (!read_all(read, arg, dynamic->offset + i * step, &entry, sizeof entry, err))
				return false;
			tag = entry.d_tag;
		}
		if (tag == DT_NULL)
			return false;
		if (tag == DT_SONAME)
			return true;
	}
	return false;
}

static enum elf_kind inspect_segments(elf_read_fn *read, void *arg, const struct headers *headers, struct elf_info *info, int *err)
{
	bool soname = false;

	for (unsigned i = 0; i < headers->phnum; i++) {
		struct segment segment;

		if (!read_segment(read, arg, headers, info->bits, i, &segment, err))
			return ELF_KIND_DAMAGED;
		if (segment.type == PT_DYNAMIC)
			soname = has_soname(read, arg, &segment, info->bits, err);
		if (segment.type != PT_INTERP || info->interpreter[0])
			continue;
		if (segment.size < 2 || segment.size > sizeof info->interpreter ||
		    !read_all(read, arg, segment.offset, info->interpreter, segment.size, err) ||
		    info->interpreter[segment.size - 1] != '\0')
			return ELF_KIND_DAMAGED;
	}
	if (info->interpreter[0])
		return ELF_KIND_DYNAMIC;
	return headers->type == ET_DYN && (soname || headers->entry == 0) ? ELF_KIND_LIBRARY : ELF_KIND_STATIC;
}

int elf_inspect(elf_read_fn *read, void *arg, struct elf_info *ret_info)
{
	union { unsigned char ident[EI_NIDENT]; Elf64_Ehdr e64; Elf32_Ehdr e32; } head;
	struct elf_info info = { ELF_KIND_OTHER, 0, 0, "" };
	struct headers headers;
	int err = 0;
	long n;

	memset(&head, 0, sizeof head);
	n = read(arg, 0, &head, sizeof head);
	if (n < 0)
		return (int)n;
	if (n >= 2 && memcmp(head.ident, "#!", 2) == 0)
		info.kind = ELF_KIND_SCRIPT;
	if (n < EI_NIDENT || memcmp(head.ident, ELFMAG, SELFMAG) != 0)
		goto out;

	info.kind = ELF_KIND_DAMAGED;
	if (head.ident[EI_CLASS] == ELFCLASS64 && (size_t)n >= sizeof head.e64)
		info.bits = 64;
	else if (head.ident[EI_CLASS] == ELFCLASS32 && (size_t)n >= sizeof head.e32)
		info.bits = 32;
	else
		goto out;
	if (head.ident[EI_DATA] != OWN_DATA) {
		info.kind = ELF_KIND_FOREIGN;
		goto out;
	}
	if (info.bits == 64) {
		headers = (struct headers){ head.e64.e_phoff, head.e64.e_entry, head.e64.e_phnum, head.e64.e_phentsize, head.e64.e_type };
		info.machine = head.e64.e_machine;
	} else {
		headers = (struct headers){ head.e32.e_phoff, head.e32.e_entry, head.e32.e_phnum, head.e32.e_phentsize, head.e32.e_type };
		info.machine = head.e32.e_machine;
	}
	if ((headers.type != ET_EXEC && headers.type != ET_DYN) || headers.phnum == 0 || headers.phnum > PHNUM_LIMIT ||
	    headers.phentsize < (info.bits == 64 ? sizeof(Elf64_Phdr) : sizeof(Elf32_Phdr)) || headers.phoff > INT64_MAX / 2)
		goto out;
	info.kind = inspect_segments(read, arg, &headers, &info, &err);
	if (err)
		return err;
out:
	*ret_info = info;
	return 0;
}

long elf_read_buffer(void *arg, uint64_t off, void *buf, size_t len)
{
	const struct elf_buffer *buffer = arg;

	if (off >= buffer->len)
		return 0;
	if (len > buffer->len - off)
		len = buffer->len - off;
	memcpy(buf, (const char *)buffer->data + off, len);
	return (long)len;
}

long elf_read_fd(void *arg, uint64_t off, void *buf, size_t len)
{
	size_t done = 0;

	if (off > INT64_MAX - len)
		return 0;
	while (done < len) {
		ssize_t n = pread(*(int *)arg, (char *)buf + done, len - done, (off_t)(off + done));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			break;
		done += (size_t)n;
	}
	return (long)done;
}

const char *elf_machine_name(unsigned machine, char *buf, size_t size)
{
	static const struct { unsigned machine; const char *name; } names[] = {
		{ EM_386, "x86" }, { EM_X86_64, "x86-64" }, { EM_ARM, "ARM" }, { EM_AARCH64, "ARM 64" }, { EM_RISCV, "RISC-V" },
		{ EM_PPC64, "PowerPC 64" }, { EM_S390, "s390" }, { EM_MIPS, "MIPS" },
	};

	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (names[i].machine == machine)
			return names[i].name;
	snprintf(buf, size, "machine %u", machine);
	return buf;
}

static bool blank(char c)
{
	return c == ' ' || c == '\t';
}

int script_parse(const char *line, size_t len, struct script_line *ret_script)
{
	struct script_line script = { "", "" };
	const char *end, *start, *stop;

	if (len < 2 || memcmp(line, "#!", 2) != 0)
		return -ENOEXEC;
	if (len > 256)
		len = 256;
	end = memchr(line, '\n', len);
	if (!end)
		end = memchr(line, '\0', len);
	if (!end) {
		/* The kernel accepts a cut-off line if at least the interpreter is whole. */
		end = line + len;
	}
	for (start = line + 2; start < end && blank(*start); start++)
		;
	for (stop = start; stop < end && !blank(*stop) && *stop; stop++)
		;
	if (stop == start || (size_t)(stop - start) >= sizeof script.interpreter || (stop == end && len == 256 && end == line + 256))
		return -ENOEXEC;
	memcpy(script.interpreter, start, (size_t)(stop - start));
	for (start = stop; start < end && blank(*start); start++)
		;
	while (end > start && blank(end[-1]))
		end--;
	memcpy(script.argument, start, (size_t)(end - start));
	*ret_script = script;
	return 0;
}

/* The next word of env's -S text, quotes removed; false at the end. */
static bool next_word(const char **text, char *word, size_t size)
{
	const char *in = *text;
	char quote = '\0';
	size_t n = 0;

	while (blank(*in))
		in++;
	if (!*in)
		return false;
	for (; *in && (quote || !blank(*in)); in++) {
		char c = *in;

		if (quote ? c == quote : c == '\'' || c == '"') {
			quote = quote ? '\0' : c;
			continue;
		}
		if (c == '\\' && quote != '\'' && in[1])
			c = *++in;
		if (n + 1 < size)
			word[n++] = c;
	}
	word[n] = '\0';
	*text = in;
	return true;
}

int script_env_program(const char *argument, char *ret_program, size_t size)
{
	const char *text = argument;
	char word[256];
	bool split = false;

	/* Without -S the kernel's one argument is one word, blanks and all. */
	if (strncmp(argument, "-S", 2) == 0 || strncmp(argument, "-vS", 3) == 0 || strncmp(argument, "--split-string", 14) == 0) {
		text += argument[1] == 'S' ? 2 : argument[1] == 'v' ? 3 : 14;
		if (*text == '=')
			text++;
		split = true;
	}
	for (;;) {
		if (split) {
			if (!next_word(&text, word, sizeof word))
				return -ENOENT;
		} else {
			if (!*text)
				return -ENOENT;
			snprintf(word, sizeof word, "%s", text);
			text = "";
		}
		if (strcmp(word, "-") == 0 || strcmp(word, "-i") == 0 || strcmp(word, "--ignore-environment") == 0)
			return -EINVAL;
		if (strcmp(word, "-u") == 0 || strcmp(word, "-C") == 0) {
			bool unset = word[1] == 'u';

			if (!split || !next_word(&text, word, sizeof word))
				return -ENOENT;
			if (unset && strcmp(word, "LD_PRELOAD") == 0)
				return -EINVAL;
			continue;
		}
		if (strcmp(word, "-uLD_PRELOAD") == 0 || strcmp(word, "--unset=LD_PRELOAD") == 0)
			return -EINVAL;
		if (strncmp(word, "LD_PRELOAD=", 11) == 0)
			return -EINVAL;
		if (word[0] == '-' && strcmp(word, "--") != 0)
			continue;
		if (strcmp(word, "--") == 0 || strchr(word, '='))
			continue;
		if (strlen(word) >= size)
			return -ENOENT;
		strcpy(ret_program, word);
		return 0;
	}
}
