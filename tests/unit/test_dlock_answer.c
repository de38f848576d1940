/* SPDX-License-Identifier: MIT */
/* LINK: daemon-lite/dlock/answer.c daemon-lite/dlock/rows.c daemon-lite/dlock/agent_client.c daemon-lite/dlock/sentence.c daemon-lite/dlock/json.c
 * daemon-lite/dlock/table.c daemon-lite/dlock/text.c daemon-lite/records.c shim/wire.c */
/* The dlock command against a made-up agent: tables and JSON of what it says, and a sentence for each way it can fail. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "../../daemon-lite/dlock/agent_client.h"
#include "../../daemon-lite/dlock/answer.h"
#include "../../daemon-lite/dlock/dlock.h"
#include "../../daemon-lite/dlock/text.h"
#include "../../shim/wire.h"

static const char records[] =
	"record=host\tid=h1\tname=web1\tpid=10\tself=1\tconfirmed=1\tlease_ms=29000\n"
	"record=host\tid=h2\tname=web2\tpid=20\tself=0\tconfirmed=1\tlease_ms=12000\n"
	"record=waiter\tkey=f:b\thost=h2\thost_name=web2\tpid=22\tcommand=py\tmode=EX\ttry=0\torder=2\tage_ms=3100\twhere=store\n"
	"record=waiter\tkey=f:b\thost=h2\thost_name=web2\tpid=21\tcommand=py\tmode=SH\ttry=0\torder=1\tage_ms=900\twhere=store\n"
	"record=waiter\tkey=f:b\thost=h1\thost_name=web1\tpid=13\tcommand=sh\tmode=EX\ttry=0\torder=9\tage_ms=1\twhere=kernel\n"
	"record=cover\tkey=f:b\thost=h1\tmode=EX\tfence=7\tpid=11\tcommand=flock\tage_ms=61000\tstate=held\n"
	"record=holder\tkey=f:b\thost=h1\thost_name=web1\tpid=12\tcommand=heir\tmode=EX\n"
	"record=cover\tkey=f:a\\x0a\xff\thost=h2\tmode=SH\tfence=18446744073709551615\tpid=5\tcommand=gone\tstate=idle\n";

struct fake {
	char directory[32];
	int listener;
	pthread_t thread;
	uint16_t type;		/* of the last message; 0 = hang up */
	int err;
	const char *text;	/* of the last message */
	const char *records;	/* NULL = none */
	size_t cut;		/* bytes of the first record packet, 0 = all in one */
	char asked[64];
};

static void say(int fd, uint16_t type, int err, const char *text, size_t len)
{
	char packet[4096];
	struct wire_msg msg;

	wire_init(&msg, type);
	msg.err = err;
	msg.text_len = (uint32_t)len;
	memcpy(packet, &msg, sizeof msg);
	memcpy(packet + sizeof msg, text, len);
	if (type == 999)
		((struct wire_msg *)(void *)packet)->version = 77;
	if (send(fd, packet, sizeof msg + len, MSG_NOSIGNAL) < 0)
		return;
}

static void *serve(void *arg)
{
	struct fake *fake = arg;
	int fd = accept4(fake->listener, NULL, NULL, SOCK_CLOEXEC);
	char packet[4096];
	struct wire_msg msg;
	const char *text;
	ssize_t n;

	if (fd < 0)
		return NULL;
	n = recv(fd, packet, sizeof packet, 0);
	if (n > 0 && wire_parse(packet, (size_t)n, &msg, &text) == 0) {
		size_t len = fake->records ? strlen(fake->records) : 0, cut = records_fit(fake->records ? fake->records : "", len, fake->cut);

		memcpy(fake->asked, text, msg.text_len);
		if (cut)
			say(fd, WIRE_RECORD, 0, fake->records, cut);
		if (len > cut)
			say(fd, WIRE_RECORD, 0, fake->records + cut, len - cut);
		if (fake->type)
			say(fd, fake->type, fake->err, fake->text ? fake->text : "", fake->text ? strlen(fake->text) : 0);
	}
	close(fd);
	return NULL;
}

static void fake_start(struct fake *fake)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };

	strcpy(fake->directory, "/tmp/test_dlock.XXXXXX");
	assert_non_null(mkdtemp(fake->directory));
	snprintf(address.sun_path, sizeof address.sun_path, "%s/%s", fake->directory, WIRE_SOCKET_NAME);
	fake->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(fake->listener, (struct sockaddr *)&address, sizeof address), 0);
	assert_int_equal(listen(fake->listener, 1), 0);
	assert_int_equal(pthread_create(&fake->thread, NULL, serve, fake), 0);
}

static void fake_stop(struct fake *fake)
{
	char path[64];

	pthread_join(fake->thread, NULL);
	close(fake->listener);
	snprintf(path, sizeof path, "%s/%s", fake->directory, WIRE_SOCKET_NAME);
	unlink(path);
	rmdir(fake->directory);
}

static int ask(struct fake *fake, struct answer *ret_answer, struct refusal *refusal)
{
	int n;

	memset(refusal, 0, sizeof *refusal);
	fake_start(fake);
	n = answer_ask(fake->directory, "status", ret_answer, refusal);
	fake_stop(fake);
	return n;
}

static void add_key(void *arg, const struct answer *answer, const char *key)
{
	answer_rows(answer, key, arg);
}

static void test_the_table_shows_holders_then_waiters_in_order(void **state)
{
	static const char wanted[] =
		"NAME     MODE  KIND   RANGE  HOST  PID  COMMAND  AGE    FENCE                 STATE             LEASE\n"
		"a\\x0a\\xff  SH    flock  -      web2  -    -               18446744073709551615  idle              12s\n"
		"b        EX    flock  -      web1  12   heir     1m01s  7                     held              29s\n"
		"b        EX    flock  -      web1  13   sh       1ms                          waits 1 (kernel)\n"
		"b        SH    flock  -      web2  21   py       900ms                        waits 2\n"
		"b        EX    flock  -      web2  22   py       3s                           waits 3\n";
	struct fake fake = { .type = WIRE_END, .records = records, .cut = 300 };
	struct table table = { .columns = ANSWER_COLUMNS };
	struct answer answer;
	struct refusal refusal;
	size_t size;
	char *text;
	FILE *out;

	(void)state;
	assert_int_equal(ask(&fake, &answer, &refusal), 0);
	assert_string_equal(fake.asked, "status");
	assert_int_equal(answer.count, 8);
	table_add(&table, answer_headings);
	answer_each_key(&answer, add_key, &table);
	out = open_memstream(&text, &size);
	table_print(&table, out, "");
	fclose(out);
	/* The first column is as wide as "a\x0a\xff"; blanks between are not what is tested. */
	for (const char *a = text, *b = wanted; ; ) {
		size_t m = strspn(a, " "), n = strspn(b, " ");

		assert_int_equal(m > 0, n > 0);
		a += m;
		b += n;
		assert_int_equal(*a, *b);
		if (!*a)
			break;
		a++;
		b++;
	}
	free(text);
	table_free(&table);
	answer_free(&answer);
}

static char *rows_of(const char *said)
{
	struct fake fake = { .type = WIRE_END, .records = said };
	struct table table = { .columns = ANSWER_COLUMNS };
	struct answer answer;
	struct refusal refusal;
	size_t size;
	char *text;
	FILE *out;

	assert_int_equal(ask(&fake, &answer, &refusal), 0);
	answer_each_key(&answer, add_key, &table);
	out = open_memstream(&text, &size);
	table_print(&table, out, "");
	fclose(out);
	table_free(&table);
	answer_free(&answer);
	return text;
}

static void test_who_asked_for_a_cover_of_a_silent_host_is_in_brackets(void **state)
{
	char *text = rows_of("record=host\tid=aaaa-1\tname=web\tpid=10\tlive=0\n"
			     "record=host\tid=bbbb-2\tname=web\tpid=20\tlive=1\n"
			     "record=cover\tkey=f:a\thost=aaaa-1\tmode=EX\tfence=7\tpid=11\tcommand=flock\tage_ms=61000\tstate=unknown\n"
			     "record=cover\tkey=f:b\thost=bbbb-2\tmode=EX\tfence=8\tage_ms=61000\tstate=held\n");

	(void)state;
	/* Two hosts of one name are told apart. */
	assert_string_equal(text, "a  EX  flock  -  web/aaaa  (11)  (flock)  1m01s  7  unknown\n"
				  "b  EX  flock  -  web/bbbb  ?     ?        1m01s  8  held\n");
	free(text);
}

static void test_many_holders_of_one_cover_are_counted(void **state)
{
	char said[3000] = "record=cover\tkey=f:a\thost=h\tmode=SH\tfence=7\tage_ms=1000\tstate=held\n";
	char *text, *row;
	int rows = 0;

	(void)state;
	for (int i = 0; i < 23; i++)
		sprintf(said + strlen(said), "record=holder\tkey=f:a\thost=h\tpid=%d\tcommand=r\tmode=SH%s\n", 100 + i, i ? "" : "\tage_ms=5000");
	text = rows_of(said);
	for (row = text; (row = strchr(row, '\n')); row++)
		rows++;
	assert_int_equal(rows, 21);
	assert_non_null(strstr(text, "a  SH  flock  -  h  100  r       5s  7  held\n"));
	assert_non_null(strstr(text, "a  SH  flock  -  h  119  r       1s  7  held\n"));
	assert_non_null(strstr(text, "a  SH  flock  -  h  + 3  (more)      7  held\n"));
	free(text);
}

#define PART(mode, start, end, fence, state) "record=cover\tkey=r:a\thost=h\tmode=" mode "\tkind=record\tstart=" start "\tend=" end "\tfence=" fence "\tage_ms=5000\tstate=" state "\n"
#define LOCK(pid, mode, kind, start, end) "record=holder\tkey=r:a\thost=h\tpid=" pid "\tcommand=c\tmode=" mode "\tkind=" kind "\tstart=" start "\tend=" end "\n"
#define EOF_TEXT "9223372036854775808"

/* Blanks are not what is tested. */
static void check_rows(const char *said, const char *wanted)
{
	char *text = rows_of(said), *out = text;

	for (const char *in = text; *in; in++)
		if (*in != ' ' || (out > text && out[-1] != ' ' && out[-1] != '\n'))
			*out++ = *in;
	*out = '\0';
	assert_string_equal(text, wanted);
	free(text);
}

static void test_each_record_lock_is_a_row_and_the_rest_of_the_cover_one(void **state)
{
	(void)state;
	check_rows(PART("EX", "0", EOF_TEXT, "7", "held")
		   LOCK("12", "SH", "ofd", "300", EOF_TEXT) LOCK("11", "EX", "record", "100", "200") LOCK("12", "SH", "ofd", "150", "160")
		   "record=waiter\tkey=r:a\thost=i\tpid=9\tcommand=d\tmode=EX\tkind=record\tstart=5\tend=6\ttry=0\torder=3\tage_ms=2000\twhere=store\n",
		   "a EX record 100-200 h 11 c 7 held\n"
		   "a SH ofd 150-160 h 12 c 7 held\n"
		   "a SH ofd 300-EOF h 12 c 7 held\n"
		   "a EX record 0-300 (2 parts) h - - 5s 7 idle\n"
		   "a EX record 5-6 i 9 d 2s waits 1\n");
}

static void test_many_parts_of_a_cover_are_summed_up_in_one_row(void **state)
{
	(void)state;
	check_rows(PART("EX", "0", "10", "7", "idle") PART("EX", "10", "20", "8", "idle") PART("EX", "30", "40", "6", "held") PART("SH", "50", "60", "6", "idle")
		   LOCK("11", "EX", "record", "30", "40"),
		   "a EX record 30-40 h 11 c 6 held\n"
		   "a SH/EX record 0-60 (2 parts) h - - 5s 8 idle\n");
}

static void test_parts_in_other_states_are_not_called_idle(void **state)
{
	(void)state;
	check_rows(PART("EX", "0", "10", "7", "recalled") PART("EX", "20", "30", "8", "held") PART("EX", "40", "50", "9", "idle")
		   LOCK("11", "EX", "record", "2", "3"),
		   "a EX record 2-3 h 11 c 7 recalled\n"
		   "a EX record 20-30 h ? ? 5s 8 held\n"
		   "a EX record 0-10 (2 parts) h - - 5s 7 recalled\n"
		   "a EX record 40-50 h - - 5s 9 idle\n");
	check_rows("record=cover\tkey=r:a\thost=h\tmode=EX\tkind=record\tstart=0\tend=10\tfence=7\tage_ms=5000\tpid=4\tcommand=c\tstate=unknown\n",
		   "a EX record 0-10 h (4) (c) 5s 7 unknown\n");
}

static void test_a_lock_without_a_found_holder_or_cover_is_shown(void **state)
{
	(void)state;
	check_rows(LOCK("", "EX", "record", "5", "6"), "a EX record 5-6 h ? c held\n");
	/* Numbers that make no range are no range. */
	check_rows(LOCK("3", "EX", "record", "6", "5"), "a EX record 0-EOF h 3 c held\n");
	check_rows(LOCK("3", "EX", "record", "x", "18446744073709551615"), "a EX record 0-EOF h 3 c held\n");
}

static void test_both_families_of_a_name_stand_together(void **state)
{
	(void)state;
	check_rows("record=cover\tkey=f:b\thost=h\tmode=EX\tfence=1\tstate=idle\n"
		   "record=cover\tkey=r:a\thost=h\tmode=EX\tfence=2\tstate=idle\n"
		   "record=cover\tkey=r:b\thost=h\tmode=EX\tfence=3\tstart=0\tend=1\tstate=idle\n"
		   "record=cover\tkey=f:a\thost=h\tmode=EX\tfence=4\tstate=idle\n",
		   "a EX flock - h - - 4 idle\n"
		   "a EX record 0-EOF h - - 2 idle\n"
		   "b EX flock - h - - 1 idle\n"
		   "b EX record 0-1 h - - 3 idle\n");
}

static void test_json_has_the_range_and_null_where_it_never_ends(void **state)
{
	struct fake fake = { .type = WIRE_END, .records = LOCK("11", "EX", "ofd", "3", EOF_TEXT) LOCK("", "SH", "record", "0", "9") };
	struct answer answer;
	struct refusal refusal;
	struct json json = { 0 };
	size_t size;
	char *text;

	(void)state;
	assert_int_equal(ask(&fake, &answer, &refusal), 0);
	json.out = open_memstream(&text, &size);
	answer_json(&answer, "r:a", &json);
	fclose(json.out);
	assert_non_null(strstr(text, "\"family\": \"record\""));
	assert_non_null(strstr(text, "\"pid\": 11,\n      \"command\": \"c\",\n      \"mode\": \"EX\",\n      \"kind\": \"ofd\",\n      \"start\": 3,\n      \"end\": null\n"));
	assert_non_null(strstr(text, "\"pid\": null,"));
	assert_non_null(strstr(text, "\"start\": 0,\n      \"end\": 9\n"));
	free(text);
	answer_free(&answer);
}

static void test_any_ranges_are_summed_up_without_losing_a_byte(void **state)
{
	unsigned seed = 7;

	(void)state;
	for (int round = 0; round < 300; round++) {
		char said[4000] = "", *text, *idle;
		bool held[64] = { false }, covered[64] = { false };
		unsigned first = 64, last = 0;
		unsigned at = 0;

		while (at < 60) {
			unsigned start = at + (seed = seed * 1103515245u + 12345u) / 65536 % 4, end = start + 1 + seed / 97 % 9;

			sprintf(said + strlen(said), "record=cover\tkey=r:a\thost=h\tmode=EX\tstart=%u\tend=%u\tfence=1\tstate=idle\n", start, end < 64 ? end : 64);
			for (unsigned i = start; i < end && i < 64; i++)
				covered[i] = true;
			at = end;
		}
		for (int i = 0; i < 5; i++) {
			unsigned start = (seed = seed * 1103515245u + 12345u) / 65536 % 63, end = start + 1 + seed / 97 % 9;

			sprintf(said + strlen(said), "record=holder\tkey=r:a\thost=h\tpid=5\tcommand=c\tmode=EX\tstart=%u\tend=%u\n", start, end);
			for (unsigned j = start; j < end && j < 64; j++)
				held[j] = true;
		}
		for (unsigned i = 0; i < 64; i++)
			if (covered[i] && !held[i]) {
				first = i < first ? i : first;
				last = i + 1;
			}
		text = rows_of(said);
		idle = strstr(text, "-  -");
		if (first == 64) {
			assert_null(idle);
		} else {
			char range[40];

			snprintf(range, sizeof range, "record  %u-%u ", first, last);
			assert_non_null(idle);
			assert_non_null(strstr(text, range));
		}
		free(text);
	}
}

static void test_json_is_well_formed_whatever_the_name(void **state)
{
	struct fake fake = { .type = WIRE_END, .records = records };
	struct answer answer;
	struct refusal refusal;
	struct json json = { 0 };
	size_t size;
	char *text;

	(void)state;
	assert_int_equal(ask(&fake, &answer, &refusal), 0);
	json.out = open_memstream(&text, &size);
	answer_json(&answer, "f:a\n\xff", &json);
	fclose(json.out);
	assert_string_equal(text,
			    "{\n  \"name\": \"a\\n\\ufffd\",\n  \"name_hex\": \"610aff\",\n  \"family\": \"flock\",\n  \"covers\": [\n    {\n"
			    "      \"host\": \"h2\",\n      \"mode\": \"SH\",\n      \"fence\": 18446744073709551615,\n      \"pid\": 5,\n"
			    "      \"command\": \"gone\",\n      \"state\": \"idle\"\n    }\n  ],\n  \"holders\": [],\n  \"waiters\": []\n}\n");
	free(text);
	answer_free(&answer);
}

static void test_json_escapes_what_must_be(void **state)
{
	struct json json = { 0 };
	size_t size;
	char *text;

	(void)state;
	json.out = open_memstream(&text, &size);
	json_begin(&json, NULL, '[');
	json_string(&json, NULL, "\"\\\t\001\x7f/\xc3\xa4\xed\xa0\x80\xf0\x9f\x94\x92");
	json_bool(&json, NULL, true);
	json_null(&json, NULL);
	json_end(&json, ']');
	fclose(json.out);
	assert_string_equal(text, "[\n  \"\\\"\\\\\\t\\u0001\\u007f/\xc3\xa4\\ufffd\\ufffd\\ufffd\xf0\x9f\x94\x92\",\n  true,\n  null\n]\n");
	free(text);
}

static void test_nothing_in_a_name_reaches_the_terminal_raw(void **state)
{
	char *text = text_printable("a\033[2J\r\xc2\x9b\xe2\x80\xae\xc3\xa4\xff\xc0\x80");

	(void)state;
	assert_string_equal(text, "a\\x1b[2J\\x0d\\xc2\\x9b\\xe2\\x80\\xae\xc3\xa4\\xff\\xc0\\x80");
	free(text);
}

static void check_refused(struct fake *fake, int err, const char *sentence)
{
	struct answer answer;
	struct refusal refusal;

	assert_int_equal(ask(fake, &answer, &refusal), err);
	assert_int_equal(refusal.code, EXIT_TROUBLE);
	assert_non_null(strstr(refusal.text, sentence));
	answer_free(&answer);
}

static void test_each_failure_of_the_agent_has_its_sentence(void **state)
{
	(void)state;
	check_refused(&(struct fake){ .type = 0 }, -ECONNRESET, "ended the conversation");
	check_refused(&(struct fake){ .type = 0, .records = records }, -ECONNRESET, "ended the conversation");
	check_refused(&(struct fake){ .type = 999 }, -EPROTO, "another version of the protocol");
	check_refused(&(struct fake){ .type = WIRE_GO }, -EPROTO, "another version of the protocol");
	check_refused(&(struct fake){ .type = WIRE_ERROR, .err = EAGAIN, .text = "the store is away" }, -EAGAIN, "the agent refused: the store is away");
	check_refused(&(struct fake){ .type = WIRE_END, .err = -5 }, -EIO, "refused the question");
	check_refused(&(struct fake){ .type = WIRE_END, .records = "record=a\tgarbage\n" }, -EBADMSG, "cannot be read");
}

static void test_no_agent_is_told_from_others(void **state)
{
	struct refusal refusal;
	char path[200];

	(void)state;
	assert_int_equal(agent_connect("/nonexistent", &refusal), -ENOENT);
	assert_non_null(strstr(refusal.text, "no agent answers in the runtime directory /nonexistent"));
	memset(path, 'x', sizeof path);
	path[0] = '/';
	path[sizeof path - 1] = '\0';
	assert_int_equal(agent_connect(path, &refusal), -ENAMETOOLONG);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_the_table_shows_holders_then_waiters_in_order),
		cmocka_unit_test(test_who_asked_for_a_cover_of_a_silent_host_is_in_brackets),
		cmocka_unit_test(test_many_holders_of_one_cover_are_counted),
		cmocka_unit_test(test_each_record_lock_is_a_row_and_the_rest_of_the_cover_one),
		cmocka_unit_test(test_many_parts_of_a_cover_are_summed_up_in_one_row),
		cmocka_unit_test(test_parts_in_other_states_are_not_called_idle),
		cmocka_unit_test(test_a_lock_without_a_found_holder_or_cover_is_shown),
		cmocka_unit_test(test_both_families_of_a_name_stand_together),
		cmocka_unit_test(test_json_has_the_range_and_null_where_it_never_ends),
		cmocka_unit_test(test_any_ranges_are_summed_up_without_losing_a_byte),
		cmocka_unit_test(test_json_is_well_formed_whatever_the_name),
		cmocka_unit_test(test_json_escapes_what_must_be),
		cmocka_unit_test(test_nothing_in_a_name_reaches_the_terminal_raw),
		cmocka_unit_test(test_each_failure_of_the_agent_has_its_sentence),
		cmocka_unit_test(test_no_agent_is_told_from_others),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
