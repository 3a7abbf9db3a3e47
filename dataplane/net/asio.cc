// SPDX-License-Identifier: Apache-2.0
// Asio is compiled once, here.
#include <asio/impl/src.hpp>
#include <asio/ssl/impl/src.hpp>
