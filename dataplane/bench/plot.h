// SPDX-License-Identifier: Apache-2.0
// Lines over two axes that begin at zero, as SVG.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace farpool::bench {

struct Plot {
  std::string title, x, y;
  struct Line {
    std::string name;
    std::vector<std::pair<double, double>> points;
  };
  std::vector<Line> lines;
  std::vector<std::pair<double, std::string>> marks;  // places on the x axis that have a name
};

inline std::string svg(const Plot& plot) {
  constexpr double kWidth = 720, kHeight = 420, kLeft = 70, kRight = 20, kTop = 50, kBottom = 60;
  constexpr const char* kColours[] = {"#1b6ca8", "#c0392b", "#2e8b57", "#8e44ad"};
  double most_x = 0, most_y = 0;
  for (const Plot::Line& line : plot.lines) {
    for (const auto& [x, y] : line.points) most_x = std::max(most_x, x), most_y = std::max(most_y, y);
  }
  // Steps of 1, 2 or 5 times a power of ten, five to ten of them.
  const auto step_of = [](double most) {
    if (most <= 0) return 1.0;
    const double power = std::pow(10, std::floor(std::log10(most / 5)));
    const double steps = most / 5 / power;
    return power * (steps < 1.5 ? 1 : steps < 3.5 ? 2 : 5);
  };
  const double step_x = step_of(most_x), step_y = step_of(most_y);
  const double end_x = std::max(1.0, std::ceil(most_x / step_x - 1e-9)) * step_x;
  const double end_y = std::max(1.0, std::ceil(most_y / step_y - 1e-9)) * step_y;
  const auto at_x = [&](double x) { return kLeft + x / end_x * (kWidth - kLeft - kRight); };
  const auto at_y = [&](double y) { return kHeight - kBottom - y / end_y * (kHeight - kTop - kBottom); };

  std::string text;
  const auto put = [&text](const char* format, auto... values) {
    char line[512];
    std::snprintf(line, sizeof line, format, values...);
    text += line;
  };
  put("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %g %g\" font-family=\"sans-serif\" font-size=\"13\">\n",
      kWidth, kHeight);
  put("<rect width=\"%g\" height=\"%g\" fill=\"white\"/>\n", kWidth, kHeight);
  put("<text x=\"%g\" y=\"24\" text-anchor=\"middle\" font-size=\"15\">%s</text>\n", kWidth / 2, plot.title.c_str());
  for (int step = 0; step <= std::lround(end_x / step_x); ++step) {
    const double x = step * step_x;
    put("<path d=\"M%g %gV%g\" stroke=\"#ddd\"/>", at_x(x), at_y(0), at_y(end_y));
    put("<text x=\"%g\" y=\"%g\" text-anchor=\"middle\">%g</text>\n", at_x(x), at_y(0) + 18, x);
  }
  for (int step = 0; step <= std::lround(end_y / step_y); ++step) {
    const double y = step * step_y;
    put("<path d=\"M%g %gH%g\" stroke=\"#ddd\"/>", at_x(0), at_y(y), at_x(end_x));
    put("<text x=\"%g\" y=\"%g\" text-anchor=\"end\">%g</text>\n", at_x(0) - 8, at_y(y) + 4, y);
  }
  put("<text x=\"%g\" y=\"%g\" text-anchor=\"middle\">%s</text>\n", at_x(end_x / 2), kHeight - 18, plot.x.c_str());
  put("<text transform=\"translate(18 %g) rotate(-90)\" text-anchor=\"middle\">%s</text>\n", at_y(end_y / 2),
      plot.y.c_str());
  for (const auto& [x, name] : plot.marks) {
    put("<path d=\"M%g %gV%g\" stroke=\"#555\" stroke-dasharray=\"5 4\"/>", at_x(x), at_y(0), at_y(end_y));
    put("<text x=\"%g\" y=\"%g\" fill=\"#555\">%s</text>\n", at_x(x) + 6, at_y(end_y) + 14, name.c_str());
  }
  for (std::size_t i = 0; i < plot.lines.size(); ++i) {
    const char* colour = kColours[i % std::size(kColours)];
    text += "<path fill=\"none\" stroke-width=\"2\" stroke=\"" + std::string(colour) + "\" d=\"";
    char command = 'M';
    for (const auto& [x, y] : plot.lines[i].points) {
      put("%c%.1f %.1f", command, at_x(x), at_y(y));
      command = 'L';
    }
    text += "\"/>\n";
    for (const auto& [x, y] : plot.lines[i].points) {
      put("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>", at_x(x), at_y(y), colour);
    }
    const double row = at_y(0) - 14 - 18 * static_cast<double>(plot.lines.size() - 1 - i);
    put("\n<path d=\"M%g %gh24\" stroke-width=\"2\" stroke=\"%s\"/><text x=\"%g\" y=\"%g\">%s</text>\n", kLeft + 12,
        row, colour, kLeft + 42, row + 4, plot.lines[i].name.c_str());
  }
  return text + "</svg>\n";
}

// False, and said on stderr: the file cannot be written.
inline bool draw(const Plot& plot, const std::string& file) {
  if (std::ofstream(file) << svg(plot)) return true;
  std::fprintf(stderr, "%s cannot be written\n", file.c_str());
  return false;
}

}  // namespace farpool::bench
