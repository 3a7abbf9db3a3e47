// SPDX-License-Identifier: Apache-2.0
#include "apps/password.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

namespace farpool::apps {
namespace {

using front::resp::Passwords;

class PasswordFile : public testing::Test {
 protected:
  PasswordFile() {
    std::string pattern = (std::filesystem::temp_directory_path() / "farpool-password-XXXXXX").string();
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    directory = pattern;
    path = directory + "/password";
  }
  ~PasswordFile() override { std::filesystem::remove_all(directory); }
  // Replaces the file at once, as a projected volume does.
  void write(const std::string& content) { write(path, content); }
  void write_also(const std::string& content) { write(path + ".also", content); }
  static void write(const std::string& file, const std::string& content) {
    std::ofstream(file + ".new", std::ios::binary) << content;
    std::filesystem::rename(file + ".new", file);
  }

  std::string directory, path;
};

TEST_F(PasswordFile, IsReadWithoutItsLineEnd) {
  EXPECT_EQ(*read_passwords(""), PasswordFiles{});
  for (const std::string& content : {std::string("secret"), std::string("secret\n"), std::string("secret\r\n")}) {
    write(content);
    EXPECT_EQ(read_passwords(path)->password, "secret");
  }
  write("two words\n and lines\n");
  EXPECT_EQ(read_passwords(path)->password, "two words\n and lines");
  write(std::string(4096, 'p') + "\n");
  EXPECT_EQ(read_passwords(path)->password.size(), 4096u);
  write(std::string(4097, 'p'));
  EXPECT_EQ(read_passwords(path).code(), base::Code::invalid_argument);
  write(std::string(1 << 20, 'p'));
  EXPECT_NE(read_passwords(path).status().message().find("4096"), std::string::npos);
  EXPECT_NE(read_passwords(directory).status().message().find(directory), std::string::npos);
  EXPECT_EQ(read_passwords(path + "/none").code(), base::Code::invalid_argument);
}

TEST_F(PasswordFile, MayHaveASecondOneBesideIt) {
  write("old\n");
  write_also("newer\n");
  EXPECT_EQ(*read_passwords(path), (PasswordFiles{.password = "old", .also = "newer"}));
  EXPECT_EQ(first_passwords(path, false)->also, "newer");
  write_also("\n");
  EXPECT_EQ(read_passwords(path)->passwords(), Passwords{.password = "old"}) << "an empty file is no second password";
  write_also(std::string(4097, 'p'));
  EXPECT_NE(read_passwords(path).status().message().find(path + ".also"), std::string::npos);
  std::filesystem::remove(path + ".also");
  std::filesystem::create_directory(path + ".also");
  EXPECT_EQ(read_passwords(path).code(), base::Code::invalid_argument) << "what is there has to be readable";
  std::filesystem::remove(path);
  EXPECT_EQ(read_passwords(path).code(), base::Code::invalid_argument) << "the first one has to be there";
}

TEST_F(PasswordFile, IsNotEmptyAtTheStartUnlessThatIsAllowed) {
  for (const char* content : {"", "\n", "\r\n"}) {
    write(content);
    const auto refused = first_passwords(path, false);
    EXPECT_EQ(refused.code(), base::Code::invalid_argument);
    EXPECT_NE(refused.status().message().find(path), std::string::npos);
    EXPECT_NE(refused.status().message().find("--allow-empty-password"), std::string::npos);
    EXPECT_EQ(*first_passwords(path, true), PasswordFiles{});
  }
  EXPECT_EQ(*first_passwords("", false), PasswordFiles{}) << "no file is no password";
  write("secret\n");
  EXPECT_EQ(first_passwords(path, false)->password, "secret");
  EXPECT_EQ(first_passwords(path + "/none", true).code(), base::Code::invalid_argument);
}

TEST_F(PasswordFile, IsFollowedAndNeverOpensThePoolByMistake) {
  write("one");
  net::Loop loop;
  std::vector<std::string> events;
  // Changes the file after each event; the loop's time limit is the test's.
  std::vector<std::function<void()>> steps{
      [&] { write(""); },                      // refused: empty
      [&] { write(std::string(5000, 'p')); },  // refused: too long
      [&] { std::filesystem::remove(path); },  // refused: gone
      [&] { write("two\n"); },                 // taken; the one before counts for a while
      [] {},                                   // and then no longer
      [&] { write_also("three\n"); },          // taken beside it
      [&] { write_also(""); },                 // taken back
      [&] { write("four\n"); },                // taken; people have said that no other one counts
      [&] { loop.stop(); },
  };
  std::size_t next = 0;
  const auto saw = [&](const std::string& event) {
    events.push_back(event);
    steps.at(++next)();
  };
  const PasswordWatch watch(
      loop, path, {.password = "one"},
      [&](const Passwords& now) { saw("now " + now.password + (now.also.empty() ? "" : " and " + now.also)); },
      [&](const std::string& trouble) {
        saw(trouble.find("empty") != std::string::npos  ? "empty"
            : trouble.find("4096") != std::string::npos ? "long"
                                                        : "unreadable");
      },
      1);
  net::Alarm limit(loop, [&] { loop.stop(); });
  limit.set(net::Loop::now() + 60 * base::kSecond);
  steps[0]();
  loop.run();
  EXPECT_EQ(events, (std::vector<std::string>{"empty", "long", "unreadable", "now two and one", "now two",
                                              "now two and three", "now two", "now four"}));
}

// The operator computes the same numbers (TestFingerprintsOfPasswords).
TEST(PasswordFingerprints, TellOnesFromOthersWithoutTellingThem) {
  EXPECT_TRUE(fingerprints("uid", {}).empty());
  EXPECT_TRUE(fingerprints("uid", {.password = "", .also = "newer"}).empty())
      << "a pool without a password asks for none";
  const auto both = fingerprints("uid", {.password = "old", .also = "newer"});
  EXPECT_EQ(both, (std::vector<std::uint64_t>{0x2bd3017d1f0bcecdull, 0x5a82410516908721ull}));
  EXPECT_EQ(fingerprints("uid", {.password = "newer"}), std::vector<std::uint64_t>{both.back()});
  EXPECT_NE(fingerprints("other", {.password = "newer"}), std::vector<std::uint64_t>{both.back()});
}

}  // namespace
}  // namespace farpool::apps
