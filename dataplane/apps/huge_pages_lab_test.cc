// SPDX-License-Identifier: Apache-2.0
// A memory node over huge pages, which the test reserves: in the laboratory's guest, or where root may do so.
#include <gtest/gtest.h>
#include <sys/mount.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "apps/daemon_test.h"

namespace farpool::apps {
namespace {

constexpr char kReserved[] = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
constexpr char kFree[] = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";

int number_in(const char* path) {
  std::ifstream file(path);
  int number = -1;
  file >> number;
  return number;
}
void write(const char* path, int number) { std::ofstream(path) << number; }

class HugePages : public testing::Test {
 protected:
  static constexpr int kPages = 16;  // of the memory that is lent

  void SetUp() override {
    before_ = number_in(kReserved);
    write(kReserved, before_ + kPages);
    ASSERT_GE(number_in(kFree), kPages) << "the kernel reserves no huge pages";
    std::filesystem::create_directories(volume);
    ASSERT_EQ(::mount("none", volume.c_str(), "hugetlbfs", 0, "pagesize=2M"), 0);
  }
  void TearDown() override {
    ::umount(volume.c_str());
    std::filesystem::remove(volume);
    write(kReserved, before_);
  }
  std::vector<std::string> flags(const std::string& path, const std::string& memory = "32Mi",
                                 const std::string& pages = "2Mi") {
    std::vector<std::string> all{"--name=m0",
                                 "--pool-uid=pool-1",
                                 "--insecure-plaintext",
                                 "--memory=" + memory,
                                 "--huge-pages=" + pages,
                                 "--numa-align",
                                 "--agent-listen=none",
                                 "--log-format=text",
                                 "--standalone",
                                 "--listen=" + endpoint,
                                 "--advertise=" + endpoint,
                                 "--metrics-listen=127.0.0.1:" + std::to_string(http)};
    if (!path.empty()) all.push_back("--memory-path=" + path);
    return all;
  }

  const std::string volume =
      (std::filesystem::temp_directory_path() / ("farpool-huge-" + std::to_string(::getpid()))).string();
  int http = free_port();
  std::string endpoint = "127.0.0.1:" + std::to_string(free_port());

 private:
  int before_ = 0;
};

TEST_F(HugePages, OfAVolumeAreTakenAndOutliveTheProcess) {
  const int free = number_in(kFree);
  for (int life = 0; life < 3; ++life) {
    Daemon node(FARPOOL_MEMORY_NODE, flags(volume));
    ASSERT_TRUE(comes_up(node, http));
    EXPECT_EQ(number_in(kFree), free - kPages);
    const std::string metrics = get(http, "/metrics").value_or("");
    EXPECT_NE(metrics.find("\nfarpool_node_warm_restarts " + std::to_string(life) + "\n"), std::string::npos)
        << metrics;
    node.signal(SIGKILL);
    node.wait();
  }
  EXPECT_EQ(number_in(kFree), free - kPages);
  std::filesystem::remove(volume + "/m0.memory");
  EXPECT_EQ(number_in(kFree), free);
}

TEST_F(HugePages, OfTheProcessAreTakenAndGivenBack) {
  const int free = number_in(kFree);
  {
    Daemon node(FARPOOL_MEMORY_NODE, flags(""));
    ASSERT_TRUE(comes_up(node, http));
    EXPECT_EQ(number_in(kFree), free - kPages);
  }
  EXPECT_EQ(number_in(kFree), free);
}

TEST_F(HugePages, ThatAreTooFewAreAnErrorAtTheStart) {
  for (const std::string& path : {std::string(), volume}) {
    Daemon node(FARPOOL_MEMORY_NODE, flags(path, "1Gi"));
    EXPECT_GT(node.wait(), 0);
    EXPECT_NE(node.output().find(path.empty() ? "reserve more of them" : "enlarge the volume"), std::string::npos)
        << node.output();
  }
}

TEST_F(HugePages, AreNotTakenUnasked) {
  Daemon node(FARPOOL_MEMORY_NODE, flags(volume, "32Mi", "0"));
  EXPECT_GT(node.wait(), 0);
  EXPECT_NE(node.output().find("is a volume of huge pages of 2048 KiB"), std::string::npos) << node.output();
}

}  // namespace
}  // namespace farpool::apps
