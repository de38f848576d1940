/* SPDX-License-Identifier: MIT */
/* STATIC */
/* A static program: no library can be preloaded into it. It keeps what it inherited for argv[1] seconds. */
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	sleep(argc > 1 ? (unsigned)atoi(argv[1]) : 1000);
	return 0;
}
