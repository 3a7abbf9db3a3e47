// SPDX-License-Identifier: Apache-2.0
// Metric families made, at the moment of a scrape, from counters that the process keeps anyway.
#pragma once

#include <prometheus/metric_family.h>

#include <array>
#include <concepts>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "base/counts.h"

namespace farpool::apps {

class Samples {
 public:
  using Labels = std::vector<std::pair<std::string, std::string>>;

  template <class Number>
  void counter(const std::string& name, const std::string& help, Number value, const Labels& labels = {}) {
    add(name, help, prometheus::MetricType::Counter, labels).counter.value = static_cast<double>(value);
  }
  template <class Number>
  void gauge(const std::string& name, const std::string& help, Number value, const Labels& labels = {}) {
    add(name, help, prometheus::MetricType::Gauge, labels).gauge.value = static_cast<double>(value);
  }
  // Takes cumulative counts by upper bound in ascending order, without the last, which is the count of all.
  void histogram(const std::string& name, const std::string& help,
                 const std::vector<std::pair<double, std::uint64_t>>& buckets, std::uint64_t count, double sum,
                 const Labels& labels = {}) {
    prometheus::ClientMetric& metric = add(name, help, prometheus::MetricType::Histogram, labels);
    metric.histogram.sample_count = count;
    metric.histogram.sample_sum = sum;
    for (const auto& [bound, cumulative] : buckets) metric.histogram.bucket.push_back({cumulative, bound});
  }
  // Take every number of a table (base/counts.h), with the prefix before its name.
  template <class Counts, std::size_t kCount>
  void counters(const std::string& prefix, const std::array<base::Count<Counts>, kCount>& table, const Counts& counts) {
    for (const base::Count<Counts>& count : table) {
      counter(prefix + std::string(count.name) + "_total", std::string(count.help), counts.*count.value);
    }
  }
  template <class Counts, std::size_t kCount>
  void gauges(const std::string& prefix, const std::array<base::Count<Counts>, kCount>& table, const Counts& counts) {
    for (const base::Count<Counts>& count : table) {
      gauge(prefix + std::string(count.name), std::string(count.help), counts.*count.value);
    }
  }
  std::vector<prometheus::MetricFamily> take() { return std::move(families_); }

 private:
  prometheus::ClientMetric& add(const std::string& name, const std::string& help, prometheus::MetricType type,
                                const Labels& labels) {
    if (families_.empty() || families_.back().name != name) families_.push_back({name, help, type, {}});
    prometheus::ClientMetric& metric = families_.back().metric.emplace_back();
    for (const auto& [key, value] : labels) metric.label.push_back({key, value});
    return metric;
  }
  std::vector<prometheus::MetricFamily> families_;
};

}  // namespace farpool::apps
