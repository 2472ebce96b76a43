"""The queue's cost for Redis, with few and very many waiting entries, replicas and tenants.

Every cost is CPU time of Redis' main thread per call. It includes reading the command, the script, the append-only file
and the reply. It excludes the client's round trip. Calls are sent 32 at a time. `*_script_us` beside it is Redis' own
figure for EVALSHA (`INFO commandstats`): wall time inside the script.

* submit: an entry joins the line; no replica has room. * release: an attempt ends on a draining replica, whose slot is
not filled again. * fill: the added cost of granting one waiting entry. A release on a full replica gives the slot to
the next entry in fair order; the release above is subtracted.

Entries are of all three classes and have a time limit; tenants take turns. Pools are filled through the product's own
client, with no replica up; a comparison works on a copy made by Redis itself (COPY). Pools that differ in one thing are
compared with the smallest, and take turns with it: a busy neighbour then slows both. How many wait has a bar, and the
status is 1 where it is missed. Absolute figures of shared machines do not last.
"""
