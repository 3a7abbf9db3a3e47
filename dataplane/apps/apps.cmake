# The daemons: build/<preset>/apps/farpool-*. What they share is the room library `apps`.
find_path(CLI11_INCLUDE CLI/CLI.hpp REQUIRED)
find_package(nlohmann_json REQUIRED)
farpool_room(apps DEPS fabric/verbs fabric/tcp fabric/session_port swordbox/shell swordbox roce net base LIBS PkgConfig::SPDLOG prometheus-cpp::core TEST_DEPS client node sim control proto
             TEST_LIBS nlohmann_json::nlohmann_json)
target_compile_definitions(apps PUBLIC FARPOOL_VERSION="${FARPOOL_VERSION}")
target_include_directories(apps SYSTEM PUBLIC ${CLI11_INCLUDE})

# farpool_app(farpool-memory-node memory_node_main.cc DEPS node fabric/tcp [PARTS memory_node/metrics.cc])
function(farpool_app name main)
  cmake_parse_arguments(ARG "" "" "DEPS;PARTS" ${ARGN})
  list(TRANSFORM ARG_PARTS PREPEND ${CMAKE_SOURCE_DIR}/apps/)
  add_executable(${name} ${CMAKE_SOURCE_DIR}/apps/${main} ${ARG_PARTS})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/apps)
  target_link_libraries(${name} PRIVATE apps)
  foreach(dep ${ARG_DEPS})
    string(REPLACE "/" "_" target ${dep})
    target_link_libraries(${name} PRIVATE ${target})
  endforeach()
endfunction()

farpool_app(farpool-memory-node memory_node_main.cc PARTS memory_node/metrics.cc DEPS node fabric/tcp control)
farpool_app(farpool-compute-shard compute_shard_main.cc PARTS compute_shard/metrics.cc compute_shard/settings.cc
            DEPS client front/resp fabric/tcp control)
farpool_app(farpool-fsck fsck_main.cc DEPS node)
target_link_libraries(farpool-fsck PRIVATE nlohmann_json::nlohmann_json)
farpool_app(farpool-swordbox swordbox_main.cc DEPS swordbox/shell control)
farpool_app(farpool-doctor doctor_main.cc DEPS fabric/verbs)
target_link_libraries(farpool-doctor PRIVATE nlohmann_json::nlohmann_json)

# It has an operator new of its own, which the thread sanitizer has, too. `make frames` runs it in the release build, where frames come from their pool.
add_executable(allocations_test ${CMAKE_SOURCE_DIR}/apps/allocations_test_main.cc)
target_link_libraries(allocations_test PRIVATE client front_resp node fabric_tcp GTest::gtest GTest::gtest_main)
add_test(NAME allocations COMMAND allocations_test)
set_tests_properties(allocations PROPERTIES LABELS room TIMEOUT 900)

# The tests run the daemons.
foreach(tests apps_test apps_lab_test)
  add_dependencies(${tests} farpool-memory-node farpool-compute-shard farpool-fsck farpool-doctor farpool-swordbox)
  target_compile_definitions(${tests} PRIVATE FARPOOL_MEMORY_NODE="$<TARGET_FILE:farpool-memory-node>"
                                              FARPOOL_COMPUTE_SHARD="$<TARGET_FILE:farpool-compute-shard>"
                                              FARPOOL_FSCK="$<TARGET_FILE:farpool-fsck>"
                                              FARPOOL_DOCTOR="$<TARGET_FILE:farpool-doctor>"
                                              FARPOOL_SWORDBOX="$<TARGET_FILE:farpool-swordbox>")
endforeach()
