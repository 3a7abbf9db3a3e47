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
  void write(const std::string& content) {
    std::ofstream(path + ".new", std::ios::binary) << content;
    std::filesystem::rename(path + ".new", path);
  }

  std::string directory, path;
};

TEST_F(PasswordFile, IsReadWithoutItsLineEnd) {
  EXPECT_EQ(*read_password(""), "");
  for (const std::string& content : {std::string("secret"), std::string("secret\n"), std::string("secret\r\n")}) {
    write(content);
    EXPECT_EQ(*read_password(path), "secret");
  }
  write("two words\n and lines\n");
  EXPECT_EQ(*read_password(path), "two words\n and lines");
  write(std::string(4096, 'p') + "\n");
  EXPECT_EQ(read_password(path)->size(), 4096u);
  write(std::string(4097, 'p'));
  EXPECT_EQ(read_password(path).code(), base::Code::invalid_argument);
  write(std::string(1 << 20, 'p'));
  EXPECT_NE(read_password(path).status().message().find("4096"), std::string::npos);
  EXPECT_NE(read_password(directory).status().message().find(directory), std::string::npos);
  EXPECT_EQ(read_password(path + "/none").code(), base::Code::invalid_argument);
}

TEST_F(PasswordFile, IsNotEmptyAtTheStartUnlessThatIsAllowed) {
  for (const char* content : {"", "\n", "\r\n"}) {
    write(content);
    const auto refused = first_password(path, false);
    EXPECT_EQ(refused.code(), base::Code::invalid_argument);
    EXPECT_NE(refused.status().message().find(path), std::string::npos);
    EXPECT_NE(refused.status().message().find("--allow-empty-password"), std::string::npos);
    EXPECT_EQ(*first_password(path, true), "");
  }
  EXPECT_EQ(*first_password("", false), "") << "no file is no password";
  write("secret\n");
  EXPECT_EQ(*first_password(path, false), "secret");
  EXPECT_EQ(first_password(path + "/none", true).code(), base::Code::invalid_argument);
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
      [&] { write("two\n"); },                 // taken
      [&] { loop.stop(); },
  };
  std::size_t next = 0;
  const auto saw = [&](const std::string& event) {
    events.push_back(event);
    steps.at(++next)();
  };
  const PasswordWatch watch(
      loop, path, "one", [&](const std::string& password) { saw("now " + password); },
      [&](const std::string& trouble) {
        saw(trouble.find("empty") != std::string::npos  ? "empty"
            : trouble.find("4096") != std::string::npos ? "long"
                                                        : "unreadable");
      });
  net::Alarm limit(loop, [&] { loop.stop(); });
  limit.set(net::Loop::now() + 60 * base::kSecond);
  steps[0]();
  loop.run();
  EXPECT_EQ(events, (std::vector<std::string>{"empty", "long", "unreadable", "now two"}));
}

}  // namespace
}  // namespace farpool::apps
