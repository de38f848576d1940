/* SPDX-License-Identifier: MIT */
/*
 * dlock init: says once that a store is new. It never removes anything: a store
 * that has data, or is in its grace period, is left as it is.
 */
#include "dlock.h"

#include <errno.h>
#include <string.h>

#include "../../config/config.h"
#include "../store/store.h"

int cmd_init(int argc, char **argv)
{
	struct refusal refusal;
	struct setting setting;
	const char *bad, *server;
	char text[SENTENCE_MAX / 2] = "";
	int argi = 1, n, code;

	if (options_common(argc, argv, &argi, &bad) < 0)
		return usage_error("init", "%s needs a value", bad);
	if (argi < argc)
		return usage_error("init", "`%s` is not known here", argv[argi]);
	if (setting_load(&setting, &refusal) < 0)
		return complain(refusal.code, "%s", refusal.text);

	server = setting.config->redis.server_count ? setting.config->redis.servers[0] : "(no server)";
	n = store_redis_init(setting.config, text, sizeof text);
	if (n == 0) {
		printf("The store %s is declared new for the namespace %s (T = %g s): locks are granted at once.\n", server,
		       setting.config->name_space, setting.config->ttl_ms / 1000.0);
		code = EXIT_DONE;
	} else if (n == -EEXIST) {
		code = complain(EXIT_NO, "the namespace %s at %s has data already; nothing was changed, and no host needs this again",
				setting.config->name_space, server);
	} else {
		code = complain(EXIT_TROUBLE, "the store %s could not be initialised: %s", server, text[0] ? text : strerror(-n));
	}
	setting_free(&setting);
	return code;
}
