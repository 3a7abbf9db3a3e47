// SPDX-License-Identifier: Apache-2.0
// What both daemons offer besides their work: the agent for the operator, and metrics and probes over HTTP. A flag
// turns each off.
#pragma once

#include <memory>

#include "apps/settings.h"
#include "base/result.h"
#include "control/agent.h"
#include "control/web.h"

namespace farpool::apps {

// Returns null if it is turned off.
inline base::Result<std::unique_ptr<control::Agent>> start_agent(const CommonSettings& settings,
                                                                 control::Subject& subject) {
  if (settings.agent_listen == "none") return std::unique_ptr<control::Agent>();
  return control::Agent::start({.listen = settings.agent_listen, .pool_uid = settings.pool_uid, .tls = settings.tls},
                               subject);
}

// Starts the web server, likewise. `process` has metrics, and says why it is not alive or not ready.
template <class Process>
base::Result<std::unique_ptr<control::Web>> start_web(const CommonSettings& settings,
                                                      const std::shared_ptr<Process>& process) {
  if (settings.metrics_listen == "none") return std::unique_ptr<control::Web>();
  return control::Web::start({.listen = settings.metrics_listen,
                              .metrics = {process},
                              .alive = [process] { return process->alive(); },
                              .ready = [process] { return process->ready(); }});
}

}  // namespace farpool::apps
