// SPDX-License-Identifier: Apache-2.0
// The commands that touch no key.
#pragma once

#include "front/resp/conversation.h"

namespace farpool::front::resp {

// What drivers are told they talk to: the Redis whose texts and replies these are.
inline constexpr std::string_view kRedisVersion = "7.0.15";

void do_auth(Conversation&, Request&);
void do_client_getname(Conversation&, Request&);
void do_client_id(Conversation&, Request&);
void do_client_info(Conversation&, Request&);
void do_client_kill(Conversation&, Request&);
void do_client_list(Conversation&, Request&);
void do_client_no_evict(Conversation&, Request&);
void do_client_no_touch(Conversation&, Request&);
void do_client_pause(Conversation&, Request&);
void do_client_reply(Conversation&, Request&);
void do_client_setinfo(Conversation&, Request&);
void do_client_setname(Conversation&, Request&);
void do_client_tracking(Conversation&, Request&);
void do_config_get(Conversation&, Request&);
void do_echo(Conversation&, Request&);
void do_hang_up(Conversation&, Request&);
void do_hello(Conversation&, Request&);
void do_help(Conversation&, Request&);
void do_nothing_counted(Conversation&, Request&);
void do_nothing_logged(Conversation&, Request&);
void do_nothing_to_reset(Conversation&, Request&);
void do_ping(Conversation&, Request&);
void do_quit(Conversation&, Request&);
void do_reset(Conversation&, Request&);
void do_select(Conversation&, Request&);
void do_slowlog_get(Conversation&, Request&);
void do_unsubscribe(Conversation&, Request&);
void do_wait(Conversation&, Request&);

}  // namespace farpool::front::resp
