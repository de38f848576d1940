/* SPDX-License-Identifier: MIT */
/* Another part of cover_mutable.c. */
#define COVER_MUTABLE
#include "../../daemon-lite/cover_probe.c"
