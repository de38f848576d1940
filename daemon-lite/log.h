/* SPDX-License-Identifier: MIT */
/* The agent's log: one line for each event, to stderr (or the file put there). Thread-safe; never blocks the
 * caller for longer than one write(). Levels as in syslog; a line starts with the time and the level's name. */
#ifndef DLOCK_LOG_H
#define DLOCK_LOG_H

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

void log_set_level(enum log_level level);
void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* For lines that clients can cause as often as they like: at most LOG_OFTEN a second of each kind, then a count. Any thread. */
struct log_limit { _Atomic long second; _Atomic unsigned lines, dropped; };
#define LOG_OFTEN 5
/* Whether one more line may be logged; says what was left out. */
int log_allowed(struct log_limit *limit);

#define log_error(...) log_line(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warn(...) log_line(LOG_LEVEL_WARN, __VA_ARGS__)
#define log_info(...) log_line(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...) log_line(LOG_LEVEL_DEBUG, __VA_ARGS__)

#endif
