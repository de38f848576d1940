/* SPDX-License-Identifier: MIT */
/* The agent's cover rules, each of which can be switched off: see enum cover_rule. */
#define COVER_MUTABLE
#include "../../daemon-lite/cover.c"
