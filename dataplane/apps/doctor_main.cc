// SPDX-License-Identifier: Apache-2.0
// farpool-doctor: says whether this node or pod has what the verbs wire needs.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "apps/diagnosis.h"
#include "apps/settings.h"
#include "fabric/verbs/survey.h"

namespace farpool::apps {
namespace {

// Keys keep the order in which they are written.
using Json = nlohmann::ordered_json;

constexpr int kReady = 0, kNotReady = 1, kMisused = 2;

Json json_of(const Diagnosis& diagnosis) {
  Json findings = Json::array();
  for (const Finding& finding : diagnosis.findings) {
    Json json{{"check", finding.check},
              {"subject", finding.subject},
              {"level", name_of(finding.level)},
              {"found", finding.found}};
    if (!finding.fix.empty()) json["fix"] = finding.fix;
    findings.push_back(std::move(json));
  }
  return {{"version", 1}, {"verdict", diagnosis.ready() ? "ready" : "not ready"}, {"findings", findings}};
}

void print(const Diagnosis& diagnosis) {
  std::size_t subject = 0;
  for (const Finding& finding : diagnosis.findings) subject = std::max(subject, finding.subject.size());
  for (const Finding& finding : diagnosis.findings) {
    std::printf("%-8s %-*s  %-15s %s\n", std::string(name_of(finding.level)).c_str(), static_cast<int>(subject),
                finding.subject.c_str(), finding.check.c_str(), finding.found.c_str());
    if (!finding.fix.empty()) std::printf("%*s-> %s\n", static_cast<int>(subject) + 27, "", finding.fix.c_str());
  }
  std::printf("\n%s\n", diagnosis.ready()
                            ? "ready: the verbs wire has what it needs here"
                            : "not ready: the verbs wire does not work here before the problems above are solved");
}

}  // namespace
}  // namespace farpool::apps

int main(int argc, char** argv) {
  using namespace farpool::apps;
  Wanted wanted;
  farpool::fabric::verbs::SurveyOptions options;
  bool as_json = false;
  CLI::App app(
      "Says whether this machine, or this pod, has what farpool's verbs wire needs: devices, links, RoCEv2 addresses,\n"
      "MTU, atomics, locked memory (by registering some), huge pages, namespaces; and what to do where it has not.\n"
      "In a pod it sees what the daemons there see: kubectl exec POD -- farpool-doctor\n"
      "Exit status: 0 nothing stands in the way, 1 something does, 2 wrong flags.",
      "farpool-doctor");
  app.add_option("--rdma-device", wanted.device, "the one device that matters, as mlx5_0; empty: the best of all");
  app.add_option("--rdma-address", wanted.address, "IP address that the daemon is to use");
  app.add_option("--rdma-interface", wanted.interface, "network interface whose address the daemon is to use");
  app.add_option("--attachment", wanted.attachment, "how pods get the device: what that needs is looked at, too")
      ->check(CLI::IsMember({"SharedDevicePlugin", "SRIOV", "DRA", "HostNetwork"}));
  add_size(app, "--huge-pages", wanted.huge_page,
           "their size, 2Mi or 1Gi, if pods need them: one is taken and given back");
  add_size(app, "--register", options.register_bytes,
           "bytes that are registered to see whether it can be done (default 64Mi)");
  app.add_flag("--json", as_json, "for programs");
  app.set_version_flag("--version", std::string("farpool " FARPOOL_VERSION));
  try {
    app.parse(argc, argv);
    if (options.register_bytes == 0) throw CLI::ValidationError("--register", "must be at least 1");
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kMisused;
  }
  options.huge_page = wanted.huge_page;
  const Diagnosis diagnosis = diagnose(farpool::fabric::verbs::survey(options), wanted);
  if (as_json) {
    std::cout << json_of(diagnosis).dump(2) << "\n";
  } else {
    print(diagnosis);
  }
  return diagnosis.ready() ? kReady : kNotReady;
}
