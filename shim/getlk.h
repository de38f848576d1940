/* SPDX-License-Identifier: MIT */
/* F_GETLK and F_OFD_GETLK: who stands against a lock? */
#ifndef DLOCK_SHIM_GETLK_H
#define DLOCK_SHIM_GETLK_H

#include <stdint.h>

struct record_call;

/* Answers a clean question, in the program's structure. frame: see left.h. 0 or the negative of an errno that the program may see. */
int getlk_call(const struct record_call *record, uintptr_t frame);

#endif
