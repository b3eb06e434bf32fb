"""The levels that this version reads. A cluster has a level; all that it stores, and all that its brokers say to each
other, has the form of a level that each of them reads.

| level | brought |
| --- | --- |
| 1 | the first: records, journals, slots, frames, files and calls as they were before there were levels |
| 2 | the cluster's level itself: the cluster's record has it, brokers and journals name the levels that they read |
|  | cursors hold their acks and attempts packed, so that any fits into 64 KiB |
| 3 | subscriptions in the modes `shared` and `keyed`, and their settings; named leases, and what is dying, in cursors |
|  | start offsets, marks and tombstones of retention |
|  | marks of leases that were ended on suspicion: whoever takes a subscription over waits for them |
|  | field ids on all columns of files; entries state the oldest upload that their rows name |
| 4 | records of principals and tokens; brokers prove that they know the cluster's secret and no longer show it |
|  | a checksum of the footer in files |

A form is *written* at the cluster's written level (coordination/cluster_level) and *read* from LOWEST on. Each change
of a form, after a version with the level was released, takes the next level.
"""

VERSION = "0.1.0"  # of the program, for people
LOWEST = 1
HIGHEST = 4
