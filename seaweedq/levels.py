"""The levels that this version reads. A cluster has a level; all that it stores, and all that its brokers say to each
other, has the form of a level that each of them reads.

| level | brought |
| --- | --- |
| 1 | the first |

A form is *written* at the cluster's written level (coordination/cluster_level) and *read* from LOWEST on. Each change
of a form, after a version with the level was released, takes the next level.

Before the first release forms change within level 1, and each change raises DRAFT. The cluster's record and the headers
of journals have it, and nobody reads another one. With 0.1.0 it stays as it is.
"""

VERSION = "0.1.0"  # of the program, for people
LOWEST = 1
HIGHEST = 1
DRAFT = 13
