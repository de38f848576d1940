/* SPDX-License-Identifier: MIT */
/* LINK: daemon-lite/dlock/elf_check.c */
/* What `dlock run` sees in a program's first bytes: real files of this system, files made up, and damaged ones. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../daemon-lite/dlock/elf_check.h"

/* An executable in memory: header, then segments, then PT_INTERP's text. */
struct image {
	Elf64_Ehdr header;
	Elf64_Phdr segments[3];
	Elf64_Dyn dynamic[2];
	char interpreter[32];
};

static struct image program(void)
{
	struct image image;

	memset(&image, 0, sizeof image);
	memcpy(image.header.e_ident, ELFMAG, SELFMAG);
	image.header.e_ident[EI_CLASS] = ELFCLASS64;
	image.header.e_ident[EI_DATA] = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? ELFDATA2LSB : ELFDATA2MSB;
	image.header.e_type = ET_DYN;
	image.header.e_machine = EM_X86_64;
	image.header.e_entry = 0x1000;
	image.header.e_phoff = offsetof(struct image, segments);
	image.header.e_phentsize = sizeof(Elf64_Phdr);
	image.header.e_phnum = 3;
	image.segments[0] = (Elf64_Phdr){ .p_type = PT_LOAD };
	image.segments[1] = (Elf64_Phdr){ .p_type = PT_INTERP, .p_offset = offsetof(struct image, interpreter), .p_filesz = 13 };
	image.segments[2] = (Elf64_Phdr){ .p_type = PT_DYNAMIC, .p_offset = offsetof(struct image, dynamic), .p_filesz = sizeof image.dynamic };
	strcpy(image.interpreter, "/lib/ld-x.so");
	return image;
}

static enum elf_kind kind_of(const void *data, size_t len, struct elf_info *ret_info)
{
	struct elf_buffer buffer = { data, len };

	assert_int_equal(elf_inspect(elf_read_buffer, &buffer, ret_info), 0);
	return ret_info->kind;
}

static enum elf_kind kind_of_file(const char *path, struct elf_info *ret_info)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(elf_inspect(elf_read_fd, &fd, ret_info), 0);
	close(fd);
	return ret_info->kind;
}

static void test_a_program_with_a_loader_is_dynamic(void **state)
{
	struct image image = program();
	struct elf_info info;

	(void)state;
	assert_int_equal(kind_of(&image, sizeof image, &info), ELF_KIND_DYNAMIC);
	assert_int_equal(info.bits, 64);
	assert_int_equal(info.machine, EM_X86_64);
	assert_string_equal(info.interpreter, "/lib/ld-x.so");
	image.header.e_type = ET_EXEC;
	assert_int_equal(kind_of(&image, sizeof image, &info), ELF_KIND_DYNAMIC);
}

static void test_a_program_without_a_loader_is_static(void **state)
{
	struct image image = program();
	struct elf_info info;

	(void)state;
	image.segments[1].p_type = PT_NULL;
	assert_int_equal(kind_of(&image, sizeof image, &info), ELF_KIND_STATIC);	/* static-pie: ET_DYN with PT_DYNAMIC */
	image.header.e_type = ET_EXEC;
	assert_int_equal(kind_of(&image, sizeof image, &info), ELF_KIND_STATIC);
}

static void test_a_shared_library_is_no_program(void **state)
{
	struct image image = program();
	struct elf_info info;

	(void)state;
	image.segments[1].p_type = PT_NULL;
	image.dynamic[0].d_tag = DT_SONAME;
	assert_int_equal(kind_of(&image, sizeof image, &info), ELF_KIND_LIBRARY);
	image.dynamic[0].d_tag = DT_NULL;
	image.header.e_entry = 0;
	assert_int_equal(kind_of(&image, sizeof image, &info), ELF_KIND_LIBRARY);
}

static void test_a_32_bit_program_is_told_apart(void **state)
{
	struct { Elf32_Ehdr header; Elf32_Phdr segment; char interpreter[16]; } image;
	struct elf_info info;

	(void)state;
	memset(&image, 0, sizeof image);
	memcpy(image.header.e_ident, ELFMAG, SELFMAG);
	image.header.e_ident[EI_CLASS] = ELFCLASS32;
	image.header.e_ident[EI_DATA] = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? ELFDATA2LSB : ELFDATA2MSB;
	image.header.e_type = ET_EXEC;
	image.header.e_machine = EM_386;
	image.header.e_phoff = sizeof image.header;
	image.header.e_phentsize = sizeof image.segment;
	image.header.e_phnum = 1;
	image.segment = (Elf32_Phdr){ .p_type = PT_INTERP, .p_offset = sizeof image.header + sizeof image.segment, .p_filesz = 10 };
	strcpy(image.interpreter, "/lib/ld.1");
	assert_int_equal(kind_of(&image, sizeof image, &info), ELF_KIND_DYNAMIC);
	assert_int_equal(info.bits, 32);
	assert_int_equal(info.machine, EM_386);
}

static void test_the_other_byte_order_is_foreign(void **state)
{
	struct image image = program();
	struct elf_info info;

	(void)state;
	image.header.e_ident[EI_DATA] ^= ELFDATA2LSB ^ ELFDATA2MSB;
	assert_int_equal(kind_of(&image, sizeof image, &info), ELF_KIND_FOREIGN);
}

static void test_damaged_headers_are_told(void **state)
{
	struct image image;
	struct elf_info info;

	(void)state;
	image = program();
	image.header.e_phoff = UINT64_MAX - 8;
	assert_int_equal(kind_of(&image, sizeof image, &info), ELF_KIND_DAMAGED);
	image = program();
	image.header.e_phnum = 0xffff;
	assert_int_equal(kind_of(&image, sizeof image, &info), ELF_KIND_DAMAGED);
	image = program();
	image.header.e_phentsize = 1;
	assert_int_equal(kind_of(&image, sizeof image, &info), ELF_KIND_DAMAGED);
	image = program();
	image.segments[1].p_filesz = 1u << 20;
	assert_int_equal(kind_of(&image, sizeof image, &info), ELF_KIND_DAMAGED);
	image = program();
	image.segments[1].p_filesz = 5;		/* not ended by NUL */
	assert_int_equal(kind_of(&image, sizeof image, &info), ELF_KIND_DAMAGED);
	image = program();
	image.header.e_type = ET_CORE;
	assert_int_equal(kind_of(&image, sizeof image, &info), ELF_KIND_DAMAGED);
	image = program();
	for (size_t len = 0; len < offsetof(struct image, dynamic); len++) {
		enum elf_kind kind = kind_of(&image, len, &info);

		assert_int_equal(kind, len < EI_NIDENT ? ELF_KIND_OTHER : ELF_KIND_DAMAGED);
	}
}

static void test_any_bit_flipped_does_no_harm(void **state)
{
	(void)state;
	for (size_t bit = 0; bit < 8 * sizeof(struct image); bit++) {
		struct image image = program();
		struct elf_info info;

		((unsigned char *)&image)[bit / 8] ^= (unsigned char)(1u << bit % 8);
		kind_of(&image, sizeof image, &info);
	}
}

static void test_other_files_are_neither(void **state)
{
	struct elf_info info;

	(void)state;
	assert_int_equal(kind_of("", 0, &info), ELF_KIND_OTHER);
	assert_int_equal(kind_of("#", 1, &info), ELF_KIND_OTHER);
	assert_int_equal(kind_of("echo hello\n", 11, &info), ELF_KIND_OTHER);
	assert_int_equal(kind_of("#!/bin/sh\n", 10, &info), ELF_KIND_SCRIPT);
	assert_int_equal(kind_of("#!", 2, &info), ELF_KIND_SCRIPT);
}

static void test_this_program_and_its_c_library_are_seen_as_they_are(void **state)
{
	struct elf_info self, libc;
	char line[512], *path = NULL;
	FILE *maps = fopen("/proc/self/maps", "re");

	(void)state;
	assert_non_null(maps);
	while (!path && fgets(line, sizeof line, maps))
		if (strstr(line, "/libc.so") || strstr(line, "/libc-"))
			path = strchr(line, '/');
	fclose(maps);
	assert_non_null(path);
	path[strcspn(path, "\n")] = '\0';
	assert_int_equal(kind_of_file("/proc/self/exe", &self), ELF_KIND_DYNAMIC);
	assert_int_equal(self.bits, 8 * sizeof(void *));
	/* glibc can be run, so it has both a loader and a SONAME. */
	assert_int_not_equal(kind_of_file(path, &libc), ELF_KIND_STATIC);
	assert_int_equal(libc.machine, self.machine);
}

/* The linker's own work, where a compiler is there. */
static void test_what_the_compiler_makes_is_recognised(void **state)
{
	static const struct { const char *flags; enum elf_kind kind; } cases[] = {
		{ "-static", ELF_KIND_STATIC }, { "-static-pie", ELF_KIND_STATIC }, { "-no-pie", ELF_KIND_DYNAMIC }, { "-pie -fPIE", ELF_KIND_DYNAMIC },
		{ "-shared -fPIC", ELF_KIND_LIBRARY }, { "-shared -fPIC -Wl,-soname,x.so", ELF_KIND_LIBRARY },
	};
	char directory[] = "/tmp/test_elf_check.XXXXXX", command[512], path[128];
	unsigned made = 0;

	(void)state;
	assert_non_null(mkdtemp(directory));
	snprintf(path, sizeof path, "%s/program", directory);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct elf_info info;

		snprintf(command, sizeof command, "echo 'int main(void) { return 0; }' | ${CC:-cc} %s -x c -o %s - 2>/dev/null", cases[i].flags, path);
		if (system(command) != 0)
			continue;
		assert_int_equal(kind_of_file(path, &info), cases[i].kind);
		made++;
	}
	unlink(path);
	rmdir(directory);
	if (!made)
		skip();
}

static void check_script(const char *line, int err, const char *interpreter, const char *argument)
{
	struct script_line script;

	assert_int_equal(script_parse(line, strlen(line), &script), err);
	if (err)
		return;
	assert_string_equal(script.interpreter, interpreter);
	assert_string_equal(script.argument, argument);
}

static void test_a_script_line_is_read_as_the_kernel_does(void **state)
{
	char line[400];

	(void)state;
	check_script("#!/bin/sh\necho", 0, "/bin/sh", "");
	check_script("#! /bin/sh -e -u  \necho", 0, "/bin/sh", "-e -u");
	check_script("#!/usr/bin/env\tpython3\n", 0, "/usr/bin/env", "python3");
	check_script("#!/bin/sh", 0, "/bin/sh", "");
	check_script("#!\n/bin/sh", -ENOEXEC, NULL, NULL);
	check_script("#!   \n", -ENOEXEC, NULL, NULL);
	check_script("/bin/sh", -ENOEXEC, NULL, NULL);
	memset(line, 'x', sizeof line);
	memcpy(line, "#!/", 3);
	line[399] = '\0';
	check_script(line, -ENOEXEC, NULL, NULL);		/* longer than the kernel reads */
	line[255] = '\n';
	line[100] = ' ';
	line[256] = '\0';
	assert_int_equal(script_parse(line, 256, &(struct script_line){ "", "" }), 0);
}

static void check_env(const char *argument, int err, const char *program_name)
{
	char found[64] = "";

	assert_int_equal(script_env_program(argument, found, sizeof found), err);
	if (!err)
		assert_string_equal(found, program_name);
}

static void test_the_program_behind_env_is_found(void **state)
{
	(void)state;
	check_env("python3", 0, "python3");
	check_env("python3 -u", 0, "python3 -u");		/* one word without -S */
	check_env("-S python3 -u", 0, "python3");
	check_env("-Spython3 -u", 0, "python3");
	check_env("-vS python3", 0, "python3");
	check_env("--split-string=perl -w", 0, "perl");
	check_env("-S LANG=C 'my perl' -w", 0, "my perl");
	check_env("-S -u HOME -C /tmp perl", 0, "perl");
	check_env("-S -- perl", 0, "perl");
	check_env("", -ENOENT, NULL);
	check_env("-S", -ENOENT, NULL);
	check_env("-S A=B", -ENOENT, NULL);
}

static void test_env_that_clears_the_preload_is_seen(void **state)
{
	(void)state;
	check_env("-i", -EINVAL, NULL);
	check_env("-S -i perl", -EINVAL, NULL);
	check_env("-S - perl", -EINVAL, NULL);
	check_env("-S -u LD_PRELOAD perl", -EINVAL, NULL);
	check_env("-S --unset=LD_PRELOAD perl", -EINVAL, NULL);
	check_env("-S LD_PRELOAD= perl", -EINVAL, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_program_with_a_loader_is_dynamic),
		cmocka_unit_test(test_a_program_without_a_loader_is_static),
		cmocka_unit_test(test_a_shared_library_is_no_program),
		cmocka_unit_test(test_a_32_bit_program_is_told_apart),
		cmocka_unit_test(test_the_other_byte_order_is_foreign),
		cmocka_unit_test(test_damaged_headers_are_told),
		cmocka_unit_test(test_any_bit_flipped_does_no_harm),
		cmocka_unit_test(test_other_files_are_neither),
		cmocka_unit_test(test_this_program_and_its_c_library_are_seen_as_they_are),
		cmocka_unit_test(test_what_the_compiler_makes_is_recognised),
		cmocka_unit_test(test_a_script_line_is_read_as_the_kernel_does),
		cmocka_unit_test(test_the_program_behind_env_is_found),
		cmocka_unit_test(test_env_that_clears_the_preload_is_seen),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
