// SPDX-License-Identifier: Apache-2.0
// farpool-fsck as its users see it: over a node's file while the node runs, after it was killed, and damaged.
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/daemon_test.h"
#include "node/image_test.h"

namespace farpool::apps {
namespace {

using Json = nlohmann::json;

class Fsck : public testing::Test {
 protected:
  Fsck() {
    std::string pattern = (std::filesystem::temp_directory_path() / "farpool-fsck-XXXXXX").string();
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    directory = pattern;
    file = directory + "/m0.memory";
  }
  ~Fsck() override { std::filesystem::remove_all(directory); }

  int fsck(std::vector<std::string> arguments, std::string* output = nullptr) {
    Daemon checker(FARPOOL_FSCK, std::move(arguments));
    const int status = checker.wait();
    if (output != nullptr) *output = checker.output();
    return status;
  }
  void write(node::TestImage& image) {
    const base::MutableBytes bytes = image.bytes();
    std::ofstream(file, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }

  std::string directory, file;
};

TEST_F(Fsck, RefusesTheFileOfANodeThatRunsAndReadsThatOfOneThatWasKilled) {
  const int port = free_port(), http = free_port();
  Daemon node(FARPOOL_MEMORY_NODE,
              {"--name=m0", "--pool-uid=pool-1", "--memory=32Mi", "--memory-path=" + directory, "--standalone",
               "--insecure-plaintext", "--listen=127.0.0.1:" + std::to_string(port),
               "--advertise=127.0.0.1:" + std::to_string(port), "--agent-listen=none",
               "--metrics-listen=127.0.0.1:" + std::to_string(http)});
  ASSERT_TRUE(comes_up(node, http));
  std::string said;
  EXPECT_EQ(fsck({file}, &said), 2);
  EXPECT_NE(said.find("is lent by a memory node"), std::string::npos) << said;
  node.signal(SIGKILL);
  EXPECT_EQ(node.wait(), -SIGKILL);
  EXPECT_EQ(fsck({file}, &said), 0) << said;
  EXPECT_NE(said.find("m0.memory: clean"), std::string::npos) << said;
  EXPECT_NE(said.find("segments_free"), std::string::npos) << said;
}

TEST_F(Fsck, TellsProgramsWhatIsWrong) {
  node::TestImage image;
  image.claim(2, {4});
  image.row(9)[0] ^= std::byte{1};
  write(image);
  const auto before = std::filesystem::last_write_time(file);
  std::string said;
  EXPECT_EQ(fsck({file, "--json"}, &said), 1);
  const Json json = Json::parse(said, nullptr, false);
  ASSERT_FALSE(json.is_discarded()) << said;
  EXPECT_EQ(json["version"], 1);
  EXPECT_EQ(json["verdict"], "damaged");
  EXPECT_EQ(json["damage"], 1);
  EXPECT_EQ(json["kinds"]["row_torn"], 1);
  EXPECT_EQ(json["underWay"]["operations"], 1);
  std::uint64_t sum = 0;
  for (const auto& [use, bytes] : json["bytes"].items()) sum += bytes.get<std::uint64_t>();
  EXPECT_EQ(sum, image.bytes().size());
  bool named = false;
  for (const Json& finding : json["findings"]) {
    if (finding["kind"] != "row_torn") continue;
    named = true;
    EXPECT_EQ(finding["severity"], "damage");
    EXPECT_EQ(finding["region"], "tables");
    EXPECT_EQ(finding["row"], 9);
    EXPECT_EQ(finding["offset"], image.geometry().at(layout::kTable).offset + 9 * image.geometry().row_bytes());
    EXPECT_FALSE(finding["remedy"].get<std::string>().empty());
  }
  EXPECT_TRUE(named) << said;
  EXPECT_EQ(fsck({file}, &said), 1);
  EXPECT_NE(said.find("row 9 does not match its checksum"), std::string::npos) << said;
  EXPECT_EQ(std::filesystem::last_write_time(file), before);
}

TEST_F(Fsck, WhatWasUnderWayIsNoDamage) {
  node::TestImage image;
  image.plan(2, "new", "v");
  write(image);
  std::string said;
  EXPECT_EQ(fsck({file, "--json"}, &said), 0);
  EXPECT_EQ(Json::parse(said, nullptr, false)["verdict"], "unfinished") << said;
}

TEST_F(Fsck, SaysWhyItCannotRead) {
  std::string said;
  EXPECT_EQ(fsck({file}, &said), 2);
  EXPECT_NE(said.find(file + " cannot be opened"), std::string::npos) << said;
  std::ofstream(file) << std::string(8192, 'x');
  EXPECT_EQ(fsck({file, "--json"}, &said), 2);
  EXPECT_NE(said.find("\"unreadable\""), std::string::npos) << said;
  EXPECT_EQ(fsck({directory}), 2);
  EXPECT_EQ(fsck({}), 2);
  EXPECT_EQ(fsck({"--help"}, &said), 0);
  EXPECT_NE(said.find("Exit status"), std::string::npos) << said;
}

}  // namespace
}  // namespace farpool::apps
