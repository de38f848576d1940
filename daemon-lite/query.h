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
 *                        record=cover key= host= host_name= mode=SH|EX fence= age_ms= state=held|idle|recalled|unknown [pid= command=] (state as its host says; recalled:
 *                        another host wants it; unknown: no whole answer from that host, then with who asked for the cover, perhaps not its holder);
 *                        record=holder key= host= host_name= pid= command= mode= [age_ms=] (as the kernel of that host shows it; age_ms: since that process asked for it, at most so long);
 *                        record=waiter key= host= host_name= pid= command= mode= try=0|1 order=N age_ms= where=store|kernel (store: order is the ticket; kernel: 0, they wait inside a cover)
 *   check PATH           record=rule path= line= pattern= name= key= on_lost= ; then as status, with the cover, holder and waiter records of that key only
 *   stop                 ends the agent if it has no covers (tests, dlock)
 */
#ifndef DLOCK_QUERY_H
#define DLOCK_QUERY_H
#define QUERY_VERB_MAX 4200
#endif
