/* SPDX-License-Identifier: MIT */
/* LINK: tests/model/explore.c tests/model/explore_agent.c tests/model/explore_check.c tests/model/explore_cover.c */
/* LINK: tests/model/explore_hash.c tests/model/explore_net.c tests/model/explore_probe.c tests/model/explore_programs.c */
/* LINK: tests/model/explore_store.c tests/model/explore_world.c */
/* LINK: tests/model/cover_mutable.c tests/model/cover_probe_mutable.c tests/model/cover_recall_mutable.c daemon-lite/spans.c */
/*
 * Each rule of the agent's and the store's half is needed: without it the
 * explorer finds what goes wrong, with all of them it finds nothing in the same
 * scenario. DLOCK_TRACE=1 prints how it goes wrong.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>

#define COVER_MUTABLE
#define STORE_MODEL_MUTABLE
#include "../../daemon-lite/store/store_model.h"
#include "explore.h"

struct need {
	const char *what;
	enum cover_rule cover;
	enum sm_rule store;
	enum x_violation violation;
	uint64_t walks;		/* enough to find it; 0: every interleaving instead */
	struct x_scenario scenario;
};

#define RECORDS .records = true,

static const struct need needs[] = {
	{ "only a higher fence changes the cover", RULE_FENCE_RISES, 0, X_HANG, 8000,
	  { .script = { { "e0 s0", "s1 s2" }, { "e0", "ts1" } } } },
	{ "a fence that was given back is void", RULE_VOID_FENCE, 0, X_OVERLAP, 8000,
	  { .script = { { "e0 s0", "s1" }, { "e0", "s1" } } } },
	{ "a late grant still answers its request", RULE_LATE_GRANT, 0, X_HANG, 8000,
	  { .script = { { "e0 s0", "s1" }, { "e0", "s1" } } } },
	{ "a grant gives its request a GO whatever is recalled", RULE_GRANT_GOES, 0, X_LIVELOCK, 8000,
	  { .script = { { "e0 u0" }, { "e0 u0" } } } },
	{ "a grant names who waits (agent)", RULE_WAITING_MODE, 0, X_HANG, 8000,
	  { .script = { { "e0 s0", "s1" }, { "e0", "s1" } } } },
	{ "a recall is kept until its grant is known", RULE_EARLY_RECALL, 0, X_HANG, 8000,
	  { .script = { { "e0 u0" }, { "e0 u0" } } } },
	/*
	 * Not needed against any of these: a give-back of an unknown fence frees nothing, and its reply names the whole
	 * cover and who waits. The rule only saves that message. If this fails, something else has come to rely on it.
	 */
	{ "a give-back names a fence that is known (saves a message, nothing more)", RULE_KNOWN_FENCE, 0, X_FINE, 8000,
	  { .script = { { "e0 s0" }, { "s0", "te1" } }, .interrupts = 1 } },
	{ "each recall is answered by its own mode", RULE_TRY_BY_MODE, 0, X_REFUSED, 8000,
	  { .script = { { "e0 s0" }, { "ts0" } }, .idles = 1, .interrupts = 1 } },
	{ "readers pass where the name is read", RULE_NESTED_SH, 0, X_HANG, 8000,
	  { .script = { { "s0 s1 u1 u0" }, { "e0" } } } },
	{ "a try is answered at once while a program waits in the kernel", RULE_TRY_BUSY_GO, 0, X_HANG, 8000,
	  { .script = { { "s0 hold", "e1" }, { "te0" } } } },
	{ "requests here queue behind a recall", RULE_RECALL_BLOCKS, 0, X_OVERTAKEN, 8000,
	  { .script = { { "e0 u0 e0 u0" }, { "e0 u0" } } } },
	{ "a reduction leaves what the probe was not asked for", RULE_FLOOR, 0, X_OVERLAP, 0,
	  { .script = { { "e0 s0" }, { "ts0", "e1" } }, .async_probe = true } },
	{ "a probe is void when a GO has ended since", RULE_PROBE_STALE, 0, X_OVERLAP, 0,
	  { .script = { { "ts0 u0", "s1" }, { "te0 e0" } }, .async_probe = true } },
	{ "a probe that began before a try does not refuse it", RULE_TRY_ASKED, 0, X_REFUSED, 0,
	  { .script = { { "e0 u0" }, { "ts0", "te1" } }, .async_probe = true } },
	{ "a try told again counts under the newest fence", RULE_TRY_NEWEST, 0, X_HANG, 8000,
	  { RECORDS .script = { { "s1 u1", "te1:23 e1:14" }, { "e0:12 te0", "s1:34 u1:34 te1" } } } },
	{ "who waits is added when it is said again", RULE_SAME_FENCE, 0, X_HANG, 8000,
	  { RECORDS .script = { { "s0 s1" }, { "e0", "e1:23" } }, .interrupts = 1 } },
	{ "a helper waits for the weakest lock that helps", RULE_WEAKEST_WAIT, 0, X_HANG, 8000,
	  { .script = { { "e0 s0 hold" }, { "e0", "s1" } }, .interrupts = 1 } },
	{ "what was asked for twice is withdrawn", RULE_TWICE, 0, X_HANG, 20000,
	  { .script = { { "e0" }, { "e0" }, { "s0 hold", "s1" } }, .breaks = 1 } },
	{ "a standing GO ends before the kernel is asked", RULE_STANDING_QUIET, 0, X_OVERLAP, 0,
	  { .script = { { "e0 u0 e0 u0" }, { "e0" } }, .async_probe = true, .standing = true } },
	{ "a lock taken late stays only under a cover", RULE_STANDS, 0, X_OVERLAP, 8000,
	  { .script = { { "e0 u0" }, { "e0" } }, .lapses = 1 } },

	{ "who holds a part passes those who wait for it", RULE_STAKE, 0, X_REFUSED, 8000,
	  { RECORDS .script = { { "s1" }, { "te0", "e1:13 te1" } } } },
	{ "what the kernel was not asked about stays", RULE_SEEN, 0, X_OVERLAP, 8000,
	  { RECORDS .script = { { "e0:14 e0" }, { "te0:03 u0:14 hold" } } } },
	{ "a part inside another one is waited for by itself", RULE_EACH_PART, 0, X_HANG, 8000,
	  { RECORDS .script = { { "e0 u0:12 hold" }, { "s0", "e1:12" } } } },
	{ "a recall is cut to what it stands against", RULE_CUT, 0, X_HANG, 8000,
	  { RECORDS .script = { { "e0:01 hold", "e1:24 u1" }, { "e0", "e1:24" } } } },
	{ "a GO keeps no more than it allows", RULE_GO_PART, 0, X_HANG, 8000,
	  { RECORDS .script = { { "s0 u1", "e1:24 s1:23" }, { "e0:23", "s1:13" } }, .remote = true } },
	{ "no helper starts beside a try", RULE_HELPER_TRY, 0, X_LIVELOCK, 8000,
	  { RECORDS .script = { { "s0:03 ts0:23" }, { "e0:13", "e0" } } } },
	{ "a try is kept while a grant may be late", RULE_TRY_OVER, 0, X_HANG, 8000,
	  { RECORDS .script = { { "e0:34", "s0:12" }, { "e0:23 te0" } }, .interrupts = 2 } },
	{ "an idle cover is asked about alone", RULE_IDLE_ALONE, 0, X_REFUSED, 8000,
	  { RECORDS .script = { { "te0:23" }, { "s0:34" } }, .idles = 2, .seen = 1, .async_probe = true } },

	{ "conflict means with other hosts", 0, SM_RULE_OTHER_HOSTS, X_HANG, 8000,
	  { .script = { { "e0 u0", "s1" }, { "s0" } } } },
	{ "a try looks at covers only", 0, SM_RULE_TRY_COVERS, X_HANG, 8000,
	  { .script = { { "s0 hold" }, { "e0" }, { "ts0" } } } },
	{ "one entry for each request", 0, SM_RULE_ENTRIES, X_HANG, 8000,
	  { .script = { { "e0 u0", "s1" }, { "s0" } } } },
	{ "a grant names who waits (store)", 0, SM_RULE_WAITING, X_HANG, 8000,
	  { .script = { { "e0 s0", "s1" }, { "e0", "s1" } } } },
	{ "a give-back frees nothing newer", 0, SM_RULE_FENCE, X_OVERLAP, 8000,
	  { .script = { { "e0 u0", "s1 u1" }, { "e0" }, { "ts0" } } } },
	{ "a shared grant refuses no shared try", 0, SM_RULE_GRANTED_MODE, X_REFUSED, 8000,
	  { .script = { { "e0 s0" }, { "ts0" } }, .idles = 1, .interrupts = 1 } },
	{ "tries are told again under a new fence", 0, SM_RULE_TELL_AGAIN, X_HANG, 8000,
	  { RECORDS .script = { { "e0 ts0:34" }, { "s0:14", "e1:13" } }, .interrupts = 2 } },
	{ "a new connection is told what waits", 0, SM_RULE_ATTACH_TELLS, X_HANG, 20000,
	  { .script = { { "s0", "te1" }, { "e0 e0" } }, .interrupts = 1, .restarts = 1 } },
	/*
	 * Not needed against any of these: the agent names the very fence. It frees at once what the agent would
	 * give back when it hears of it.
	 */
	{ "a give-back frees what has a lower fence (saves a message, nothing more)", 0, SM_RULE_LOWER_FENCE, X_FINE, 8000,
	  { RECORDS .script = { { "e0:12 u0:12", "e1:23" }, { "te0", "e1:12" } }, .voids = 1, .repeats = 1 } },
	{ "more than was asked for goes only to a host that is alone", 0, SM_RULE_GROW_ALONE, X_OVERLAP, 8000,
	  { RECORDS .script = { { "e0:34", "ts0 te0" }, { "e0:13" } }, .passes = 1 } },
	{ "who may pass does not wait behind those who wait", 0, SM_RULE_PASS, X_HANG, 8000,
	  { RECORDS .script = { { "e0:01 e0:12" }, { "e0:02" } } } },
	{ "who waits already may pass when it is said again", 0, SM_RULE_PASS_LATE, X_HANG, 8000,
	  { RECORDS .script = { { "s1 e1:14" }, { "te0", "e1:13" } } } },
	{ "a recall is left out only for the very same part", 0, SM_RULE_TOLD, X_HANG, 8000,
	  { RECORDS .script = { { "e0 u0:12 hold" }, { "s0", "e1:12" } } } },
	{ "who waits for a part of a part is told as well", 0, SM_RULE_EACH_PART, X_HANG, 8000,
	  { RECORDS .script = { { "s1", "s1:34" }, { "e0:24 s0:34 hold" } } } },
};

enum { NEEDS = sizeof needs / sizeof needs[0], SEED = 7 };

static struct x_result result;

static void search(const struct need *need, const struct x_def *def, double seconds)
{
	if (need->walks)
		x_search_walks(def, SEED, need->walks, seconds, &result);
	else
		x_search_all(def, seconds, &result);
}

static void without_it_goes_wrong(void **state)
{
	const struct need *need = *state;
	struct x_scenario scenario = need->scenario;
	struct x_def def;

	scenario.name = need->what;
	assert_int_equal(x_def_make(&def, &scenario), 0);
	search(need, &def, 0.3);
	if (result.violation) {
		x_shrink_and_print(&def, &result);
		fail_msg("with every rule: %s", result.why);
	}
	cover_without = need->cover;
	sm_without = need->store;
	search(need, &def, 60);
	if (result.violation && getenv("DLOCK_TRACE"))
		x_shrink_and_print(&def, &result);
	cover_without = RULE_NONE;
	sm_without = SM_RULE_NONE;
	if (result.violation != need->violation)
		fail_msg("without it: %s", result.violation ? result.why : "nothing goes wrong");
}

static void test_every_rule_has_its_scenario(void **state)
{
	bool cover[RULE_COUNT] = { true }, store[SM_RULE_COUNT] = { true };

	(void)state;
	for (size_t i = 0; i < NEEDS; i++)
		cover[needs[i].cover] = store[needs[i].store] = true;
	for (int i = 0; i < RULE_COUNT; i++)
		assert_true(cover[i]);
	for (int i = 0; i < SM_RULE_COUNT; i++)
		assert_true(store[i]);
}

int main(void)
{
	struct CMUnitTest tests[NEEDS + 1] = { cmocka_unit_test(test_every_rule_has_its_scenario) };

	for (size_t i = 0; i < NEEDS; i++)
		tests[i + 1] = (struct CMUnitTest){ .name = needs[i].what, .test_func = without_it_goes_wrong,
						    .initial_state = (void *)&needs[i] };
	return cmocka_run_group_tests_name("rules", tests, NULL, NULL);
}
