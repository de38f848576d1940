/* SPDX-License-Identifier: MIT */
/* The other half of cover_mutable.c. */
#define COVER_MUTABLE
#include "../../daemon-lite/cover_probe.c"
