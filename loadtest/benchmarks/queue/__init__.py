"""What the queue costs Redis, with few and very many waiting entries, replicas and tenants.

Every cost is CPU time of Redis' main thread per call, everything counted: reading the command, the script, the
append-only file, the reply. The client's round trip is not in it. Calls are sent 32 at a time. `*_script_us` beside it
is what Redis itself says of EVALSHA (`INFO commandstats`): wall time inside the script.

* submit: an entry joins the line; no replica has room.
* release: an attempt ends on a draining replica, whose slot nobody gets.
* fill: what granting one waiting entry adds: a release on a full replica, which gives the slot to the next entry in
  fair order, less the release above.

Entries are of all three classes and have a time limit; tenants take turns. Pools are filled through the product's own
client, once per number of tenants with no replica up; each cell works on a copy of that pool made by Redis itself
(COPY). The largest cell and the smallest are compared in a run of their own, in which they take turns: a busy neighbour
then slows both. Absolute figures of shared machines do not last.
"""
