// SPDX-License-Identifier: Apache-2.0
// The commands that run on the pool.
#pragma once

#include "front/resp/conversation.h"

namespace farpool::front::resp {

// Says why MSETNX is refused: no protocol here sets several keys only if none of them is there.
inline constexpr std::string_view kSeveralIfAbsent =
    "MSETNX of several keys is not supported: a pool changes each key on its own; send SET with NX for each";

task::Task<void> op_append(Conversation&, Request&);
task::Task<void> op_dbsize(Conversation&, Request&);
task::Task<void> op_decr(Conversation&, Request&);
task::Task<void> op_decrby(Conversation&, Request&);
task::Task<void> op_del(Conversation&, Request&);
task::Task<void> op_exists(Conversation&, Request&);
task::Task<void> op_flushdb(Conversation&, Request&);
task::Task<void> op_get(Conversation&, Request&);
task::Task<void> op_getdel(Conversation&, Request&);
task::Task<void> op_getrange(Conversation&, Request&);
task::Task<void> op_getset(Conversation&, Request&);
task::Task<void> op_incr(Conversation&, Request&);
task::Task<void> op_incrby(Conversation&, Request&);
task::Task<void> op_incrbyfloat(Conversation&, Request&);
task::Task<void> op_info(Conversation&, Request&);
task::Task<void> op_keys(Conversation&, Request&);
task::Task<void> op_mget(Conversation&, Request&);
task::Task<void> op_mset(Conversation&, Request&);
task::Task<void> op_msetnx(Conversation&, Request&);
task::Task<void> op_randomkey(Conversation&, Request&);
task::Task<void> op_scan(Conversation&, Request&);
task::Task<void> op_set(Conversation&, Request&);
task::Task<void> op_setnx(Conversation&, Request&);
task::Task<void> op_setrange(Conversation&, Request&);
task::Task<void> op_strlen(Conversation&, Request&);
task::Task<void> op_type(Conversation&, Request&);
task::Task<void> op_expire(Conversation&, Request&);
task::Task<void> op_pexpire(Conversation&, Request&);
task::Task<void> op_expireat(Conversation&, Request&);
task::Task<void> op_pexpireat(Conversation&, Request&);
task::Task<void> op_ttl(Conversation&, Request&);
task::Task<void> op_pttl(Conversation&, Request&);
task::Task<void> op_expiretime(Conversation&, Request&);
task::Task<void> op_pexpiretime(Conversation&, Request&);
task::Task<void> op_persist(Conversation&, Request&);
task::Task<void> op_getex(Conversation&, Request&);
task::Task<void> op_setex(Conversation&, Request&);
task::Task<void> op_psetex(Conversation&, Request&);
task::Task<void> op_hdel(Conversation&, Request&);
task::Task<void> op_hexists(Conversation&, Request&);
task::Task<void> op_hget(Conversation&, Request&);
task::Task<void> op_hgetall(Conversation&, Request&);
task::Task<void> op_hincrby(Conversation&, Request&);
task::Task<void> op_hincrbyfloat(Conversation&, Request&);
task::Task<void> op_hkeys(Conversation&, Request&);
task::Task<void> op_hlen(Conversation&, Request&);
task::Task<void> op_hmget(Conversation&, Request&);
task::Task<void> op_hmset(Conversation&, Request&);
task::Task<void> op_hrandfield(Conversation&, Request&);
task::Task<void> op_hscan(Conversation&, Request&);
task::Task<void> op_hset(Conversation&, Request&);
task::Task<void> op_hsetnx(Conversation&, Request&);
task::Task<void> op_hstrlen(Conversation&, Request&);
task::Task<void> op_hvals(Conversation&, Request&);
task::Task<void> op_copy(Conversation&, Request&);
task::Task<void> op_lcs(Conversation&, Request&);
task::Task<void> op_memory_usage(Conversation&, Request&);
task::Task<void> op_object(Conversation&, Request&);
task::Task<void> op_rename(Conversation&, Request&);
task::Task<void> op_renamenx(Conversation&, Request&);
task::Task<void> op_bitcount(Conversation&, Request&);
task::Task<void> op_bitfield(Conversation&, Request&);
task::Task<void> op_bitfield_ro(Conversation&, Request&);
task::Task<void> op_bitpos(Conversation&, Request&);
task::Task<void> op_getbit(Conversation&, Request&);
task::Task<void> op_setbit(Conversation&, Request&);

}  // namespace farpool::front::resp
