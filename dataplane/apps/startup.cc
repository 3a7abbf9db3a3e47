// SPDX-License-Identifier: Apache-2.0
#include "apps/startup.h"

#include <algorithm>
#include <utility>

namespace farpool::apps {
namespace {

constexpr base::Nanos kBetweenLines = 5 * base::kSecond;
constexpr std::uint64_t kGrain = 5;  // percent

}  // namespace

Startup::Startup(std::function<base::Nanos()> now, std::function<void(const std::string&)> log)
    : now_(std::move(now)), log_(std::move(log)), heard_(now_()), logged_(heard_) {}

void Startup::progress(std::string_view step, std::uint64_t done, std::uint64_t of) {
  std::string line;
  {
    const std::lock_guard lock(mutex_);
    step_ = step;
    done_ = std::min(done, of);
    of_ = of;
    heard_ = now_();
    if (heard_ - logged_ < kBetweenLines) return;
    logged_ = heard_;
    line = words();
  }
  if (log_) log_(line);
}

void Startup::finish() {
  const std::lock_guard lock(mutex_);
  finished_ = true;
}

bool Startup::finished() const {
  const std::lock_guard lock(mutex_);
  return finished_;
}

std::string Startup::message() const {
  const std::lock_guard lock(mutex_);
  return finished_ ? std::string() : words();
}

std::string Startup::words() const {
  if (of_ == 0) return "starts: " + step_;
  const std::uint64_t percent =
      static_cast<std::uint64_t>(100.0 * static_cast<double>(done_) / static_cast<double>(of_));
  return "starts: " + step_ + ", " + std::to_string(percent / kGrain * kGrain) + " % of " + std::to_string(of_) +
         " bytes";
}

std::string Startup::stuck() const {
  const std::lock_guard lock(mutex_);
  if (finished_) return {};
  const base::Nanos silence = now_() - heard_;
  const auto needed = static_cast<base::Nanos>((of_ - done_) / kSlowestBytesPerSecond) * base::kSecond;
  if (silence <= std::max(kLongestSilence, needed)) return {};
  return words() + "; nothing has been heard of it for " + std::to_string(silence / base::kSecond) + " s";
}

double Startup::ratio() const {
  const std::lock_guard lock(mutex_);
  if (finished_) return 1;
  return of_ == 0 ? 0 : static_cast<double>(done_) / static_cast<double>(of_);
}

}  // namespace farpool::apps
