/*
 * events.c - the events of the log and their ids. See events.h.
 */
#include "daemon/run/events.h"

#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "daemon/run/recent.h"

/* Sorted by event. A new id: `tests/integ/test_log.py --new EVENT`. An id never changes. */
static const struct event {
    const char *name, *id;
} events[] = {
    { "accept-paused", "6ddb35e1a8004b41bce0635a7c95c2f9" },
    { "catalog-copied", "7e6690d5e198494189e261eb68fb0ac5" },
    { "catalog-copy-failed", "1b7e2c534879468bbf75e5311313e18f" },
    { "catalog-copy-read", "3315d06d988b4a8b934c493d90e0e202" },
    { "catalog-restored", "0e2bcc02ff044aefbbe6035c1ed6c694" },
    { "client-dropped", "15ec0d43bd074b409b827189195547d6" },
    { "client-gone", "6a21be4e82234451842c0cabf4f9d5bb" },
    { "clone", "bbcf80605a424147804ec16745ee2823" },
    { "commit", "481ecc40a922404bb27c46575b6ab8a7" },
    { "commit-failed", "c7c4fac5c3044a26affcfc1b601a67bd" },
    { "discard-allocated", "b5763298d53844df882149142ea13032" },
    { "discard-failed", "05c6ffcd7a6b40b4a8b0d20b060bcdf7" },
    { "discard-holed", "178d10a62c8347b3b747c32552aeab72" },
    { "discard-unsupported", "e932091b82ab411fbd5528b676013194" },
    { "discard-untold", "329e24f325eb42dd8908448eb7aff66c" },
    { "drive-drained", "5b70680ee35e4bf9b1b2062875784771" },
    { "drive-empty", "fc1f2eac68bf4f37bcf4119e3b2b81ab" },
    { "drive-error", "6a949e128e92490c984fae3a14b8a3c2" },
    { "drive-moved", "8e2f0bc9cd9a4904ab56906a11f0c4e2" },
    { "drive-stalled", "100d7d21149b424ea20433351a0a5060" },
    { "drive-used", "eade6d09bfe141cb82da7c763974e510" },
    { "early-off", "055dea2910a94c77a2b993665edb1a19" },
    { "end", "f002cd925ac4497391cb0270232fd978" },
    { "end-forced", "ce76f444f8ff43909cd760c6ef6ce5cf" },
    { "ended", "c71eb0d5962a419caac689b0c973b1b2" },
    { "ending", "172504f350e742f9867838ecec5b60ee" },
    { "failed", "12e13d3a53544212bc4fb2933dc344f1" },
    { "fetch-failed", "69d15bf6d1704f7184fb8df3f5a75ffe" },
    { "few-descriptors", "cc9d8ff76c1346f68b64c9cf09c7f029" },
    { "gpu", "0801b3d3dee54ea5a49b2e1bbb737036" },
    { "gpu-failed", "3008c15fcadf427f87b70e3a9a61e07a" },
    { "gpu-no-memory", "5d3712923c864209bd77929d5afadf6e" },
    { "gpu-no-places", "d5a965b3ff494c748822913ac98091a3" },
    { "gpu-returned", "8d252a81126e4f4e927882c1896be15c" },
    { "gpu-stranded", "861c35121b9041eaa90ef379fe1ff14d" },
    { "gpu-unpinned", "46b76dd202de4e22b3951c9525f59f69" },
    { "grads-on-nvme", "492324595dd2427aa1e80e45cc08de7a" },
    { "image-dropped", "42210020c07447db92ea89f6ce3a5e8d" },
    { "image-saved", "2153200a781548b9989dbf3038a64139" },
    { "image-stays", "66aa3c2316bd4a6283f110be68207caa" },
    { "image-waits", "a26deb5b0da1459faee36ee887bcacfc" },
    { "io-buffered", "63e29245c0bf4f43bc6fab19c6a05152" },
    { "io-fallback", "ec112163e25b4857a6b0c79cd989d4cd" },
    { "io-fixed", "35e706638a1f4ddfb0436cd77a2d42f3" },
    { "io-fixed-copied", "b8d5024d7d274211ac57f56b504a054c" },
    { "io-sparse", "ae238b3afd26450595f56bbcaf0dad65" },
    { "io-unregistered", "92c0d36cbcb14aa0a4b107ddf8677bc9" },
    { "job-end", "88a30af2323c4f5b942fbba86b386224" },
    { "job-gives-room", "aabd16d5e1714992aa68695370509cfd" },
    { "job-loaded", "474e889c17e9464eb507d2f38d2d47e7" },
    { "job-lost", "68aabe25e48342f68aafcfd99592f86a" },
    { "job-no-room", "e60a163837b342c9abd378667563e870" },
    { "job-open", "15c34424ab3742228ecf46276f883b43" },
    { "job-ready", "c0985747660045aa9977b6b19fbbab9c" },
    { "job-replan", "d116fa164b2c4365ae8bdb2238d4aabe" },
    { "job-rewind", "750552eafd754547818378fa058454c1" },
    { "job-saved", "49a91f3ca8f4441ea65560ca78e475e0" },
    { "job-share", "5e305803c2f749e981ec8cdc13c9a322" },
    { "log-dropped", "b8e720ec679c46298ece6aa996e6b536" },
    { "log-level", "e088d1a731b549b88ce89696911c6af0" },
    { "near-refused", "eae1874e40a5486c9fd60b0dcdc509cc" },
    { "notify-failed", "a696374ca8a141ee86d7216618497019" },
    { "numa", "eaba7822a0b94a15994601aa4484569f" },
    { "numa-refused", "e669a39ad4e0434f9f8a9ef15dc3e205" },
    { "oneway-malformed", "4c218205208f4f04b917743693c8ce8f" },
    { "params-not-on-gpu", "f70e37c5b5e347a18609ed3796988bc4" },
    { "path", "1ff13fc86b65453aa57bc13c3d4ab361" },
    { "path-unmeasured", "69da55e3323c4fb1968e30a882a67dc2" },
    { "prepare", "7391e67287214de295ef4efc20e32bba" },
    { "quota-set", "1761570d4f744c12ad2ef6780c83efbd" },
    { "rank-lost", "aa9bfe8e368f48fc8c8e3acc7b88ed24" },
    { "read-only", "674ceae91e814b2092eb2cdf76c931bc" },
    { "reader-lost", "f810c534c196468194fe45da6b534192" },
    { "release-refused", "bab9d226dd0f40218a6b3fdaedb7b06c" },
    { "reload", "31269b58de24448bb760783020bd741a" },
    { "reload-failed", "03ca04435d22490db12ec23ed9841419" },
    { "reload-option", "b68266f090f04011abced2364a4f48dc" },
    { "reload-pending", "fc6b6a8781114186ac01ee906d2881fa" },
    { "reload-refused", "fec1b5cc3813471197ca048d1c6e067f" },
    { "replan-failed", "1e2b3ff9a48949a49104b1fac4b0e54a" },
    { "replan-no-memory", "2eba6edcd5de4ed2a4b709c23d6e81b2" },
    { "replan-no-places", "44d5c3b485a146aebb8c7ffe7e7ca7d8" },
    { "replan-want", "48ab43ded11a46d2841f486fc0bef842" },
    { "restart", "11f40c3c29774a749d3ccab410b2d593" },
    { "rollback", "f0e7a41540ee43a09e27897a0a27bb61" },
    { "run-ends", "f2b79cbdd4bf40129880156594f62e7e" },
    { "scrub-bad", "112df54064594d36992a299e7b780a90" },
    { "scrub-done", "8f8becaed8884312bb53024c58fea441" },
    { "scrub-start", "7011b241a31c4fd384bdd62c3d9d8f1e" },
    { "scrub-stopped", "09228f948b644993bc60366d36fbffcb" },
    { "send-delayed", "ffd577c217844703aa10ed3f16adab34" },
    { "serving", "35427a2a10d44bd0a341b1ddf20745ff" },
    { "signal", "b3eed1d57f1a4653b8a9aead4a4f2166" },
    { "signal-ignored", "281c6229aef9404cad8cd4524743e2c6" },
    { "slice-refused", "f7a2575c46cb4ce397a5ae394cb225f6" },
    { "slow-request", "ba9a18d2bfaf491591ff1739654c0a52" },
    { "snapshot", "2e90658ae36841cf9245135a07a3ff3f" },
    { "snapshot-destroy", "2f4f87e19f794a0a930935de2781fb39" },
    { "socket-replaced", "77db645be9254487bcff90b538c30b73" },
    { "start", "6ff0182a451649bf87e788f013505664" },
    { "step", "8c7824006e93482cab51c81acc8ae965" },
    { "store", "c87507c0926c42018fa52ebbe6c51590" },
    { "store-poisoned", "9755ce340aba47dea9ebbe3ab884006d" },
    { "tier-set", "99521bfd673f4bb2a6511a2f4b893696" },
    { "unused", "a31304c831564caaa5ce264c1aeec6eb" },
};

static int event_compare(const void *name, const void *event)
{
    return strcmp(name, ((const struct event *)event)->name);
}

const char *zsd_event_id(const char *name)
{
    const struct event *e = bsearch(name, events, ZB_COUNT(events), sizeof(*events), event_compare);

    return e ? e->id : NULL;
}

const struct zb_log_program zsd_log_program = {
    .name = "zshardd", .prefix = "ZSHARD_", .id_of = zsd_event_id, .on_line = zsd_recent_add
};
