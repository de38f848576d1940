/* SPDX-License-Identifier: MIT */
/*
 * Translating between the model's small numbers and what stands on a server.
 * Times of day are left out; everything else is compared to the byte.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model_text.h"

/* --- lines ---------------------------------------------------------------- */

static void lines_take(struct lines *lines, char *text)
{
	if (lines->count == lines->room) {
		lines->room = lines->room ? 2 * lines->room : 32;
		lines->text = realloc(lines->text, lines->room * sizeof(lines->text[0]));
		if (!lines->text)
			abort();
	}
	lines->text[lines->count++] = text;
}

void lines_add(struct lines *lines, const char *format, ...)
{
	va_list args;
	char *text;

	va_start(args, format);
	if (vasprintf(&text, format, args) < 0)
		abort();
	va_end(args);
	lines_take(lines, text);
}

static int compare_text(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

void lines_sort(struct lines *lines)
{
	if (lines->count > 1)
		qsort(lines->text, lines->count, sizeof(lines->text[0]), compare_text);
}

void lines_free(struct lines *lines)
{
	for (size_t i = 0; i < lines->count; i++)
		free(lines->text[i]);
	free(lines->text);
	memset(lines, 0, sizeof(*lines));
}

const char *lines_differ(const struct lines *lua, const struct lines *model)
{
	static char sentence[1024];

	for (size_t i = 0; i < lua->count || i < model->count; i++) {
		const char *a = i < lua->count ? lua->text[i] : "(nothing)";
		const char *b = i < model->count ? model->text[i] : "(nothing)";

		if (strcmp(a, b)) {
			snprintf(sentence, sizeof(sentence), "line %zu: Lua has \"%.400s\", the model \"%.400s\"", i, a, b);
			return sentence;
		}
	}
	return NULL;
}

/* --- names ---------------------------------------------------------------- */

static char *small_text(void)
{
	static char buffer[4][64];
	static unsigned next;

	return buffer[next++ % 4];
}

const char *text_host(unsigned host)
{
	char *text = small_text();

	snprintf(text, 64, "0a1b2c3d-0000-4000-8000-00000000000%x", host);
	return text;
}

const char *text_key(unsigned key)
{
	static const char *const names[] = { "f:a b\n/\xc3\xa9 (deleted)", "f:w/c/%d \\\"'{x}\t", "f:y", "f:z" };

	return names[key];
}

const char *text_req(uint32_t req)
{
	char *text = small_text();

	if (req % 2)	/* differs from its neighbours only beyond 2^53 */
		snprintf(text, 64, "1844674407370%07u", req);
	else
		snprintf(text, 64, "%u", req);
	return text;
}

const char *text_token(uint32_t token)
{
	char *text = small_text();

	if (token == 0)
		return "";
	snprintf(text, 64, "token-%u", token);
	return text;
}

const char *text_info(uint32_t info)
{
	char *text = small_text();

	snprintf(text, 64, "%u cmd \n%u", 100 + info, info);
	return text;
}

/* Neighbours that only differ where a double has no digits any more, and the ends of the line. */
const char *text_point(unsigned point)
{
	static const char *const points[] = {
		"0000000000000000000", "0000000000000000001", "0000000000000004096", "0000002147483648000",
		"0009007199254740991", "0009007199254740992", "0009007199254740993", "4611686018427387904",
		"9223372036854775806", "9223372036854775807", "9223372036854775808",
	};

	_Static_assert(sizeof(points) / sizeof(points[0]) == SM_END + 1, "a text for each point");
	return points[point];
}

char *text_spans(const struct sm_list *list)
{
	char *text = malloc(list->count * 59 + 1);

	if (!text)
		abort();
	text[0] = 0;
	for (uint32_t i = 0; i < list->count; i++)
		sprintf(text + 59 * i, "%s %s %u %016u,", text_point(list->span[i].start), text_point(list->span[i].end),
			list->span[i].mode, list->span[i].fence);
	return text;
}

const char *inc_name(const struct inc_names *incs, uint32_t inc)
{
	if (inc == 0)
		return "";
	if (inc >= TEXT_INCS || !incs->name[inc])
		return "never-seen";
	return incs->name[inc];
}

void inc_names_free(struct inc_names *incs)
{
	for (int i = 0; i < TEXT_INCS; i++)
		free(incs->name[i]);
	memset(incs, 0, sizeof(*incs));
}

/* --- replies and pushes ----------------------------------------------------- */

static void add_bytes(struct lines *lines, const char *bytes, size_t len)
{
	char *text = malloc(len + 1);

	if (!text)
		abort();
	for (size_t i = 0; i < len; i++)
		text[i] = bytes[i] ? bytes[i] : '|';
	text[len] = 0;
	lines_take(lines, text);
}

void lines_of_lua_reply(const redisReply *reply, struct lines *ret)
{
	switch (reply->type) {
	case REDIS_REPLY_ARRAY:
		for (size_t i = 0; i < reply->elements; i++)
			lines_of_lua_reply(reply->element[i], ret);
		break;
	case REDIS_REPLY_STRING:
		add_bytes(ret, reply->str, (size_t)reply->len);
		break;
	case REDIS_REPLY_ERROR:
		lines_add(ret, "error %s", reply->str);
		break;
	default:
		lines_add(ret, "a reply of type %d", reply->type);
	}
}

static char *push_text(const struct sm_push *p, const struct inc_names *incs)
{
	char *text = NULL, *spans = text_spans(&p->spans), *waiting = text_spans(&p->waiting);
	const char *inc = inc_name(incs, p->inc), *key = text_key(p->key);
	int n = -1;

	switch (p->kind) {
	case 'G':
		n = asprintf(&text, "%u|%s|G|%s|%s|%s|%s", p->seq, inc, key, text_req(p->req), spans, waiting);
		break;
	case 'R':
		n = asprintf(&text, "%u|%s|R|%s|%s", p->seq, inc, key, waiting);
		break;
	case 'T':
		n = asprintf(&text, "%u|%s|T|%s|%s|%s|%s", p->seq, inc, key, waiting, text_host(p->host), text_req(p->req));
		break;
	case 'B':
		n = asprintf(&text, "%u|%s|B|%s|%s", p->seq, inc, key, text_req(p->req));
		break;
	}
	if (n < 0)
		abort();
	free(spans);
	free(waiting);
	return text;
}

void lines_of_push(const struct sm_push *p, const struct inc_names *incs, struct lines *ret)
{
	char *text = push_text(p, incs);

	lines_add(ret, "%s|%s", text_host(p->to), text);
	free(text);
}

static void add_spans(struct lines *ret, const struct sm_list *list)
{
	char *text = text_spans(list);

	lines_add(ret, "%s", text);
	free(text);
}

static void add_numbers(struct lines *ret, const uint32_t *numbers, size_t n)
{
	for (size_t i = 0; i < n; i++)
		lines_add(ret, "%u", numbers[i]);
}

static void add_refusal(const struct sm_reply *r, const struct inc_names *incs, struct lines *ret)
{
	static const char *const reasons[] = { "", "ttl", "inc", "token", "gen", "confirm", "nograce", "conflict", "exists" };

	lines_add(ret, "refused");
	lines_add(ret, "%s", reasons[r->reason]);
	lines_add(ret, "%s", inc_name(incs, r->inc));
	lines_add(ret, "%u", r->grace);
	if (r->reason == SM_TTL)
		lines_add(ret, "%u", r->number);
	else
		lines_add(ret, "%s", r->reason == SM_CONFLICT ? text_key(r->number) : "");
}

void lines_of_model_reply(const struct sm_reply *r, const struct sm_store *s, const struct inc_names *incs, struct lines *ret)
{
	static const char *const verbs[] = { "refused", NULL, "joined", "resumed", "left", "granted", "queued", "busy", "withdrawn",
					     "cover", "busy", "renewed", "expired", "ended", "asserted" };

	if (r->verb == SM_REFUSED) {
		add_refusal(r, incs, ret);
		return;
	}
	lines_add(ret, "ok");
	lines_add(ret, "%s", inc_name(incs, r->inc));
	lines_add(ret, "%u", r->grace);
	if (verbs[r->verb])
		lines_add(ret, "%s", verbs[r->verb]);
	switch (r->verb) {
	case SM_JOINED:
	case SM_RESUMED:
		add_numbers(ret, (uint32_t[]){ r->gen, r->confirmed, r->seq, r->fence }, 4);
		for (uint32_t i = 0; i < r->cover_count; i++) {
			lines_add(ret, "%s", text_key(r->cover[i].key));
			add_spans(ret, &r->cover[i].spans);
		}
		break;
	case SM_GRANTED:
	case SM_COVER:
		add_spans(ret, &r->spans);
		add_spans(ret, &r->waiting);
		break;
	case SM_WITHDRAWN:
	case SM_BUSIED:
	case SM_EXPIRED:
	case SM_ENDED:
		lines_add(ret, "%u", r->number);
		break;
	case SM_RENEWED:
		add_numbers(ret, (uint32_t[]){ r->counter, r->message_count }, 2);
		for (uint32_t i = 0; i < r->message_count; i++) {
			char *text = push_text(&r->message[i], incs);

			lines_add(ret, "%s", text);
			free(text);
		}
		for (unsigned h = 0; h < SM_HOSTS; h++)
			if (s->host[h].exists) {
				lines_add(ret, "%s", text_host(h));
				lines_add(ret, "%u", s->host[h].counter);
			}
		break;
	case SM_ASSERTED:
		add_numbers(ret, (uint32_t[]){ r->gen, r->gen_renew }, 2);
		for (uint32_t i = 0; i < r->cover_count; i++)
			lines_add(ret, "%u", r->cover[i].fence);
		break;
	default:
		break;
	}
}

/* --- whole states ----------------------------------------------------------- */

const char dump_script[] =
	"local P, out = KEYS[1], {}\n"
	"local function add(...) out[#out + 1] = (string.gsub(table.concat({...}, '|'), '%z', '|')) end\n"
	"for _, name in ipairs(redis.call('KEYS', 'dlock:*')) do\n"
	"  local short = string.sub(name, #P + 1)\n"
	"  local kind = string.sub(short, 1, 2)\n"
	"  if string.sub(name, 1, #P) ~= P then add('foreign', name)\n"
	"  elseif short == 'meta' then\n"
	"    local m = redis.call('HMGET', name, 'proto', 'inc', 'ttl', 'fence', 'ticket', 'grace', 'seqbase')\n"
	"    add('meta', m[1], m[2], m[3], m[4], m[5], m[6], m[7] or '0')\n"
	"  elseif kind == 'h:' then\n"
	"    local h = redis.call('HMGET', name, 'token', 'gen_cmd', 'gen_renew', 'inc', 'info', 'seq')\n"
	"    add(short, h[1], h[2], h[3], h[4], h[5], h[6])\n"
	"  elseif kind == 'k:' then\n"
	"    for _, key in ipairs(redis.call('SMEMBERS', name)) do add(short, key) end\n"
	"  elseif kind == 's:' then\n"
	"    local host, key = string.match(short, '^s:([^/]*)/(.*)$')\n"
	"    if not string.find(redis.call('HGET', P .. 'n:' .. key, 'c/' .. host) or '', '^%d+ %d+ %* ') then add('stray', short) end\n"
	"  elseif kind == 'o:' then\n"
	"    local z = redis.call('ZRANGE', name, 0, -1, 'WITHSCORES')\n"
	"    for i = 1, #z, 2 do add(short, z[i + 1], z[i]) end\n"
	"  else\n"
	"    local h = redis.call('HGETALL', name)\n"
	"    for i = 1, #h, 2 do\n"
	"      local v = string.gsub(h[i + 1], '^(%d+) %d+ ', '%1 - ')\n"
	"      if string.sub(h[i], 1, 2) == 'w/' then v = string.gsub(h[i + 1], '^(%d+ %d %d+ %d+ %d) %d+ ', '%1 - ') end\n"
	"      if string.find(v, '^%d+ %- %* ') then\n"
	"        local set = redis.call('ZRANGE', P .. 's:' .. string.sub(h[i], 3) .. '/' .. string.sub(short, 3), 0, -1)\n"
	"        v = string.gsub(v, '^(%d+ %- )%*', function(head) return head .. table.concat(set) end)\n"
	"      end\n"
	"      add(short, h[i], v)\n"
	"    end\n"
	"  end\n"
	"end\n"
	"return out\n";

static void add_host_state(const struct sm_store *s, unsigned h, const struct inc_names *incs, struct lines *ret)
{
	const struct sm_host *host = &s->host[h];

	lines_add(ret, "hosts|%s|%u", text_host(h), host->counter);
	lines_add(ret, "h:%s|%s|%u|%u|%s|%s|%u", text_host(h), text_token(host->token), host->gen[SM_CMD], host->gen[SM_RENEW],
		  inc_name(incs, host->inc), text_info(host->info), host->seq);
	for (uint32_t i = 0; i < host->outbox_count; i++) {
		char *text = push_text(&host->outbox[i], incs);

		lines_add(ret, "o:%s|%u|%s", text_host(h), host->outbox[i].seq, text);
		free(text);
	}
	for (unsigned key = 0; key < SM_KEYS; key++) {
		bool uses = sm_has_cover(s, (uint8_t)key, (uint8_t)h);

		for (uint32_t i = 0; i < s->queue_count; i++)
			uses = uses || (s->queue[i].key == key && s->queue[i].host == h);
		if (uses)
			lines_add(ret, "k:%s|%s", text_host(h), text_key(key));
	}
}

void lines_of_model_state(const struct sm_store *s, const struct inc_names *incs, struct lines *ret)
{
	if (s->inc)
		lines_add(ret, "meta|2|%s|%u|%u|%u|%u|%u", inc_name(incs, s->inc), s->ttl, s->fence, s->ticket, s->grace, s->seqbase);
	for (unsigned h = 0; h < SM_HOSTS; h++)
		if (s->host[h].exists)
			add_host_state(s, h, incs, ret);
	for (unsigned key = 0; key < SM_KEYS; key++)
		for (unsigned h = 0; h < SM_HOSTS; h++) {
			struct sm_list list;
			char *spans;

			sm_cover_spans(s, (uint8_t)key, (uint8_t)h, 0, SM_END, &list);
			spans = text_spans(&list);
			if (list.count)
				lines_add(ret, "n:%s|c/%s|%u - %s %s", text_key(key), text_host(h), list.count, spans,
					  text_info(s->cover[key][h].info));
			free(spans);
		}
	for (uint32_t i = 0; i < s->queue_count; i++) {
		const struct sm_request *q = &s->queue[i];

		lines_add(ret, "n:%s|w/%s/%s|%u %u %s %s %u - %s", text_key(q->key), text_host(q->host), text_req(q->req), q->ticket,
			  q->flags, text_point(q->start), text_point(q->end), q->mode, text_info(q->info));
	}
	lines_sort(ret);
}
