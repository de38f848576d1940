/* SPDX-License-Identifier: MIT */
#ifndef DLOCK_VERSION
#define DLOCK_VERSION "0.1.0"
#endif
