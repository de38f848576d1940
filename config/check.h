/* SPDX-License-Identifier: MIT */
/*
 * Judges single values of the configuration. Each returns 0, or -EINVAL with
 * text (of CHECK_TEXT_MAX bytes) that follows the key and value: "is empty; write …". Pure.
 */
#ifndef DLOCK_CHECK_H
#define DLOCK_CHECK_H

#define CHECK_TEXT_MAX 320

/* 1 to 64 of [A-Za-z0-9._-]. */
int check_namespace(const char *value, char text[CHECK_TEXT_MAX]);

/* An absolute path that fits into PATH_MAX. */
int check_path(const char *value, char text[CHECK_TEXT_MAX]);

/* redis://HOST[:PORT][/DB] or unix:///path. */
int check_server(const char *value, char text[CHECK_TEXT_MAX]);

/* kill, log, signal:NAME (with or without SIG, or the number). */
int check_on_lost(const char *value, char text[CHECK_TEXT_MAX]);

/* A name template for a well-formed pattern: every placeholder known, no {n} beyond its wildcards. */
int check_template(const char *value, const char *pattern, char text[CHECK_TEXT_MAX]);

#endif
