/* SPDX-License-Identifier: MIT */
/* One sentence for each thing that can go wrong: kept in a refusal, or printed. */
#include "dlock.h"

#include <stdarg.h>

int refuse(struct refusal *refusal, int code, const char *format, ...)
{
	va_list args;

	refusal->code = code;
	va_start(args, format);
	vsnprintf(refusal->text, sizeof refusal->text, format, args);
	va_end(args);
	return -1;
}

int complain(int code, const char *format, ...)
{
	char text[SENTENCE_MAX];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof text, format, args);
	va_end(args);
	/* Names of files end up in these sentences: they must not move the cursor or start a line. */
	for (char *c = text; *c; c++)
		if ((unsigned char)*c < 0x20 || *c == 0x7f)
			*c = '?';
	fprintf(stderr, "dlock: %s\n", text);
	return code;
}
