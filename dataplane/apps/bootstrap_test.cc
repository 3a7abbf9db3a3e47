// SPDX-License-Identifier: Apache-2.0
#include "apps/bootstrap.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>

namespace farpool::apps {
namespace {

TEST(Bootstrap, TakesAddressesAndNames) {
  const auto spec = parse_bootstrap("10.0.0.1:7400,dns:nodes.pool.svc:7400,[::1]:7401");
  ASSERT_TRUE(spec.ok()) << spec.status().message();
  EXPECT_EQ(spec->fixed, (std::vector<std::string>{"10.0.0.1:7400", "[::1]:7401"}));
  ASSERT_EQ(spec->names.size(), 1u);
  EXPECT_EQ(spec->names[0].name, "nodes.pool.svc");
  EXPECT_EQ(spec->names[0].port, "7400");
}

TEST(Bootstrap, RefusesWhatIsNoAddress) {
  for (const char* text : {"", "a", "a:", ":1", "a:0", "a:65536", "a:1,", "a:1x", "::1:7400", "dns:7400", "dns:a"}) {
    EXPECT_EQ(parse_bootstrap(text).code(), base::Code::invalid_argument) << text;
  }
}

TEST(Bootstrap, ResolvesEveryAddressOfAName) {
  std::string trouble;
  const auto addresses =
      resolve({.fixed = {"10.0.0.1:1", "10.0.0.1:1"}, .names = {{"127.0.0.1", "7400"}, {"::1", "7400"}}}, trouble);
  EXPECT_EQ(addresses, (std::vector<std::string>{"10.0.0.1:1", "127.0.0.1:7400", "[::1]:7400"}));
  EXPECT_TRUE(trouble.empty());
  EXPECT_TRUE(resolve({.fixed = {}, .names = {{"no such name", "1"}}}, trouble).empty());
  EXPECT_NE(trouble.find("no such name"), std::string::npos);
}

class AddressFile : public ::testing::Test {
 protected:
  AddressFile() {
    std::string name = std::filesystem::temp_directory_path() / "farpool-addresses-XXXXXX";
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    directory_ = name;
  }
  ~AddressFile() override { std::filesystem::remove_all(directory_); }
  std::filesystem::path directory_;
};

TEST_F(AddressFile, ReadsBackWhatItWrote) {
  const std::string path = directory_ / "map";
  EXPECT_TRUE(read_addresses(path).empty());
  const std::vector<std::string> addresses{"10.0.0.1:7400", "[::1]:7400"};
  ASSERT_TRUE(write_addresses(path, addresses).ok());
  EXPECT_EQ(read_addresses(path), addresses);
  ASSERT_TRUE(write_addresses(path, {"10.0.0.2:7400"}).ok());
  EXPECT_EQ(read_addresses(path), (std::vector<std::string>{"10.0.0.2:7400"}));
  EXPECT_FALSE(write_addresses(directory_ / "no" / "map", addresses).ok());
}

TEST_F(AddressFile, PassesOverWhatIsNoAddress) {
  const std::string path = directory_ / "map";
  std::ofstream(path) << "garbage\n10.0.0.1:7400\n\x01\x02\n:\n";
  EXPECT_EQ(read_addresses(path), (std::vector<std::string>{"10.0.0.1:7400"}));
}

TEST(Resolver, TellsWhatItFoundAndEnds) {
  std::promise<std::vector<std::string>> found;
  bool told = false;
  Resolver resolver(
      {.fixed = {}, .names = {{"127.0.0.1", "7400"}}},
      [&](std::vector<std::string> addresses, const std::string&) {
        if (!std::exchange(told, true)) found.set_value(std::move(addresses));
      },
      [] { return true; });
  auto future = found.get_future();
  ASSERT_EQ(future.wait_for(std::chrono::seconds(30)), std::future_status::ready);
  EXPECT_EQ(future.get(), (std::vector<std::string>{"127.0.0.1:7400"}));
}

}  // namespace
}  // namespace farpool::apps
