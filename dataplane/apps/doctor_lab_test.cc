// SPDX-License-Identifier: Apache-2.0
// farpool-doctor beside a working device, and beside devices that are broken on purpose. It needs the laboratory's
// guest, or another machine that may make interfaces and SoftRoCE devices: `make test-verbs`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "apps/daemon_test.h"

namespace farpool::apps {
namespace {

using testing::HasSubstr;

// Runs the doctor as a child of another command, such as prlimit.
class Doctor {
 public:
  explicit Doctor(std::vector<std::string> flags, std::vector<std::string> under = {}) {
    under.emplace_back(FARPOOL_DOCTOR);
    under.insert(under.end(), flags.begin(), flags.end());
    under.emplace_back("--json");
    Daemon process("/usr/bin/env", std::move(under));
    status_ = process.wait();
    said_ = process.output();
    json_ = nlohmann::json::parse(said_, nullptr, false);
  }
  int status() const { return status_; }
  const std::string& said() const { return said_; }
  // Returns what a check found at a level, and the fix; empty if it found nothing.
  std::string finding(const std::string& check, const std::string& level) const {
    if (!json_.is_object()) return "";
    for (const auto& each : json_.at("findings")) {
      if (each.at("check") == check && each.at("level") == level) {
        return each.at("found").get<std::string>() + " -> " + each.value("fix", "");
      }
    }
    return "";
  }

 private:
  int status_ = 0;
  std::string said_;
  nlohmann::json json_;
};

TEST(Doctor, FindsNothingWrongWithADeviceThatWorks) {
  const Doctor doctor({});
  EXPECT_EQ(doctor.status(), 0) << doctor.said();
  for (const char* check : {"devices", "link", "atomics", "registration"}) {
    EXPECT_NE(doctor.finding(check, "ok"), "") << check << "\n" << doctor.said();
  }
}

TEST(Doctor, FindsThatMemoryCannotBeLocked) {
  const Doctor doctor({},
                      {"prlimit", "--memlock=65536", "setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock"});
  EXPECT_EQ(doctor.status(), 1) << doctor.said();
  EXPECT_THAT(doctor.finding("registration", "problem"), HasSubstr("the limit on locked memory is 64 KiB"));
  EXPECT_THAT(doctor.finding("ipc-lock", "warning"), HasSubstr("IPC_LOCK is not granted"));
  // The same limit does not matter for a process with the capability.
  EXPECT_EQ(Doctor({}, {"prlimit", "--memlock=65536"}).status(), 0);
}

TEST(Doctor, FindsThatThePodHasNoFileOfTheDevice) {
  const Doctor doctor({},
                      {"unshare", "--mount", "sh", "-c", R"(mount -t tmpfs none /dev/infiniband && exec "$0" "$@")"});
  EXPECT_EQ(doctor.status(), 1) << doctor.said();
  EXPECT_THAT(doctor.finding("devices", "problem"), HasSubstr("ask for the device plugin's resource"));
}

// A SoftRoCE device of its own, for the test to break.
class DoctorOfADevice : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* command : {"ip link add ailing mtu 1500 type dummy", "ip addr add 10.78.0.1/24 dev ailing",
                                "ip link set ailing up", "rdma link add rxe_ailing type rxe netdev ailing"}) {
      ASSERT_TRUE(succeeds(command)) << command;
    }
  }
  void TearDown() override {
    succeeds("rdma link delete rxe_ailing");
    succeeds("ip link delete ailing");
  }
  static bool succeeds(const std::string& command) { return std::system(command.c_str()) == 0; }
  // Changes of an interface reach its device a little later.
  static Doctor once(int status, const std::vector<std::string>& flags) {
    const auto limit = std::chrono::steady_clock::now() + kPatience;
    while (true) {
      Doctor doctor(flags);
      if (doctor.status() == status || std::chrono::steady_clock::now() > limit) return doctor;
    }
  }
  const std::string device = "--rdma-device=rxe_ailing";
};

TEST_F(DoctorOfADevice, FindsSmallPackets) {
  const Doctor doctor = once(0, {device, "--rdma-interface=ailing"});
  EXPECT_EQ(doctor.status(), 0) << doctor.said();
  EXPECT_THAT(doctor.finding("mtu", "warning"), HasSubstr("packets of 1024 bytes, as the MTU of ailing is 1500"));
}

TEST_F(DoctorOfADevice, FindsThatItsLinkIsDown) {
  ASSERT_TRUE(succeeds("ip link set ailing down"));
  const Doctor doctor = once(1, {device});
  EXPECT_EQ(doctor.status(), 1) << doctor.said();
  EXPECT_THAT(doctor.finding("link", "problem"), HasSubstr("ip link set ailing up"));
}

TEST_F(DoctorOfADevice, FindsThatItsAddressIsGone) {
  const std::vector<std::string> flags{device, "--rdma-address=10.78.0.1"};
  EXPECT_EQ(once(0, flags).status(), 0);
  ASSERT_TRUE(succeeds("ip addr del 10.78.0.1/24 dev ailing"));
  const Doctor doctor = once(1, flags);
  EXPECT_EQ(doctor.status(), 1) << doctor.said();
  EXPECT_THAT(doctor.finding("address", "problem"), HasSubstr("no RoCEv2 address 10.78.0.1"));
}

// A memory node takes the address from the interface that it is given. If it ends, its message lets the operator
// recognise a lack of RDMA (plan/status.go).
class NodeOfADevice : public DoctorOfADevice {
 protected:
  std::vector<std::string> under(std::vector<std::string> command, const std::string& interface) const {
    command.insert(command.end(), {FARPOOL_MEMORY_NODE, "--name=m0", "--pool-uid=pool-1", "--insecure-plaintext",
                                   "--memory=32Mi", "--wire=verbs", "--failure-timeout=4s", "--lease=8s",
                                   "--rdma-device=rxe_ailing", "--rdma-interface=" + interface, "--standalone",
                                   "--agent-listen=none", "--log-format=text", "--listen=" + endpoint,
                                   "--advertise=" + endpoint, "--metrics-listen=127.0.0.1:" + std::to_string(http)});
    return command;
  }
  int http = free_port();
  std::string endpoint = "127.0.0.1:" + std::to_string(free_port());
};

TEST_F(NodeOfADevice, TakesTheAddressOfTheInterfaceItIsGiven) {
  ASSERT_EQ(once(0, {device, "--rdma-address=10.78.0.1"}).status(), 0);
  Daemon node("/usr/bin/env", under({}, "ailing"));
  ASSERT_TRUE(comes_up(node, http));
  node.signal(SIGTERM);
  EXPECT_EQ(node.wait(), 0);
  EXPECT_THAT(node.output(), HasSubstr("verbs by rxe_ailing, address 10.78.0.1"));
}

TEST_F(NodeOfADevice, SaysThatItEndsForLackOfRdma) {
  Daemon elsewhere("/usr/bin/env", under({}, "lo"));
  EXPECT_GT(elsewhere.wait(), 0);
  EXPECT_THAT(elsewhere.output(), HasSubstr("--wire verbs: rxe_ailing has no RoCEv2 address 127.0.0.1"));
  Daemon nowhere("/usr/bin/env", under({}, "nowhere"));
  EXPECT_GT(nowhere.wait(), 0);
  EXPECT_THAT(nowhere.output(), HasSubstr("--rdma-interface: there is no interface nowhere"));
  ASSERT_EQ(once(0, {device, "--rdma-address=10.78.0.1"}).status(), 0);
  Daemon unlocked(
      "/usr/bin/env",
      under({"prlimit", "--memlock=65536", "setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock"}, "ailing"));
  EXPECT_GT(unlocked.wait(), 0);
  EXPECT_THAT(unlocked.output(), HasSubstr("--wire verbs: registering 33554432 bytes of memory: Cannot allocate"));
}

}  // namespace
}  // namespace farpool::apps
