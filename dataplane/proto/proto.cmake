# The messages of api/proto in C++: room `proto` (messages) and target `proto_grpc` (the agent's service, for control and apps).
# Generated code goes to the build tree and is exempt from our warnings.
set(api ${CMAKE_SOURCE_DIR}/../api/proto)
set(generated ${CMAKE_BINARY_DIR}/generated)
file(MAKE_DIRECTORY ${generated})
find_program(GRPC_CPP_PLUGIN grpc_cpp_plugin REQUIRED)

set(messages)
set(headers)
foreach(name shard_map session agent)
  set(stem farpool/v1alpha1/${name})
  add_custom_command(
    OUTPUT ${generated}/${stem}.pb.cc ${generated}/${stem}.pb.h
    COMMAND protobuf::protoc --cpp_out=${generated} -I${api} ${api}/${stem}.proto
    DEPENDS ${api}/${stem}.proto ${api}/farpool/v1alpha1/shard_map.proto
    VERBATIM)
  list(APPEND messages ${generated}/${stem}.pb.cc)
  list(APPEND headers ${generated}/${stem}.pb.h)
endforeach()
set(agent farpool/v1alpha1/agent)
add_custom_command(
  OUTPUT ${generated}/${agent}.grpc.pb.cc ${generated}/${agent}.grpc.pb.h
  COMMAND protobuf::protoc --grpc_out=${generated} --plugin=protoc-gen-grpc=${GRPC_CPP_PLUGIN} -I${api} ${api}/${agent}.proto
  DEPENDS ${api}/${agent}.proto ${api}/farpool/v1alpha1/shard_map.proto
  VERBATIM)

add_library(proto STATIC ${messages} ${headers})
target_include_directories(proto SYSTEM PUBLIC ${generated})
target_compile_options(proto PRIVATE -w)
target_link_libraries(proto PUBLIC protobuf::libprotobuf)

add_library(proto_grpc STATIC ${generated}/${agent}.grpc.pb.cc ${generated}/${agent}.grpc.pb.h)
target_compile_options(proto_grpc PRIVATE -w)
target_link_libraries(proto_grpc PUBLIC proto gRPC::grpc++)

add_executable(proto_test ${CMAKE_CURRENT_LIST_DIR}/proto_test.cc)
target_link_libraries(proto_test PRIVATE proto GTest::gtest GTest::gtest_main)
target_compile_definitions(proto_test PRIVATE FARPOOL_API_TESTDATA="../../api/testdata")
add_test(NAME proto COMMAND proto_test WORKING_DIRECTORY ${CMAKE_CURRENT_LIST_DIR})
set_tests_properties(proto PROPERTIES LABELS room TIMEOUT 120)
