/* SPDX-License-Identifier: MIT */
/*
 * Queries of the dlock command to the agent, over WIRE_QUERY (see shim/wire.h). The text is the verb, a NUL-free argument
 * behind one space. The answer is WIRE_RECORD packets, each one or more records, then WIRE_END with err and a sentence.
 * A record is one line: fields `name=value` separated by tabs, ended by '\n'; in values \t, \n, \\ and other control
 * bytes are written as \xHH. The first field is `record=KIND`.
 *
 *   ping                 record=agent version= pid= host= id= namespace= config= state=(up|grace|connecting|refused) why= on_demand=0|1
 *   status               record=agent …; record=store inc= grace=0|1 fence= ttl_ms=;
 *                        record=host id= name= pid= self=0|1 confirmed=0|1 live=0|1 (its agent answered this survey) age_ms=(since its counter was last seen to move)
 *                        lease_ms=(what remains of T by our observation; both missing if it was not seen to renew yet);
 *                        record=cover key= host= host_name= mode=SH|EX kind= start= end= fence= age_ms= state=held|idle|recalled|unknown [pid= command=] (one for each part of a
 *                        host's cover; state as its host says; recalled: another host wants some of it; held: some of it; unknown: no whole answer from that host, then with who
 *                        asked for the cover, perhaps not its holder; age_ms: since the host's cover of this lock has grown last);
 *                        record=holder key= host= host_name= pid= command= mode= kind= start= end= [age_ms=] (one for each lock, as the kernel of that host shows it; pid empty:
 *                        somebody has it who was not found; age_ms: since that process asked for it, at most so long);
 *                        record=waiter key= host= host_name= pid= command= mode= kind= start= end= try=0|1 order=N age_ms= where=store|kernel (store: order is the ticket; kernel: 0, they wait inside a cover)
 *                        key: f:NAME for flock, r:NAME for record locks. kind: flock, record (owned by a process, or not known by whom), ofd (by an open file description).
 *                        start, end: offsets, end not included, 9223372036854775808 = never ends
 *   status PATH|NAME     the same, with what is about locks of that name only; the rule's record first if a rule names the path
 *   check PATH           record=rule path= line= pattern= name= on_lost= ; then as status NAME
 *   stop                 ends the agent if it has no covers (tests, dlock)
 */
#ifndef DLOCK_QUERY_H
#define DLOCK_QUERY_H
#define QUERY_VERB_MAX 4200
#endif
