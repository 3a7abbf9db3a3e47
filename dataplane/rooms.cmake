# Each room with what it may use. Keep in step with rooms.arrows (the include checker reads that file).
farpool_room(base LIBS PkgConfig::XXHASH PkgConfig::ISAL)
farpool_room(task DEPS base)
include(proto/proto.cmake)
farpool_room(fabric DEPS task base)
farpool_room(fabric/contract DEPS fabric task base)
farpool_room(layout DEPS base)
