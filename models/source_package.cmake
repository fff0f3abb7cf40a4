# fox_source_package(name version sha256 out): the folder of a source distribution on PyPI, checked
# by hash and kept in the build tree; an empty string where pip gives none.
function(fox_source_package name version sha256 out)
  set(${out} "" PARENT_SCOPE)
  set(folder ${CMAKE_BINARY_DIR}/_deps/${name})
  set(unpacked ${folder}/${name}-${version})
  file(SHA256 ${CMAKE_CURRENT_LIST_FILE} caller)  # which may patch what was unpacked
  if(NOT EXISTS ${unpacked}/unpacked-${caller})
    set(archive ${unpacked}.tar.gz)
    file(MAKE_DIRECTORY ${folder})
    find_package(Python3 COMPONENTS Interpreter QUIET)
    if(NOT EXISTS ${archive} AND Python3_FOUND)
      message(STATUS "Fetching ${name} ${version} with pip")
      # Not `--no-binary :all:`: pip would then compile its own build tools from source, too. It
      # also prepares the package's metadata; a failure there may still leave the archive.
      execute_process(
        COMMAND ${Python3_EXECUTABLE} -m pip download --quiet --no-deps --no-binary ${name}
                --dest ${folder} ${name}==${version}
        RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output TIMEOUT 300)
    endif()
    if(NOT EXISTS ${archive})
      message(STATUS "pip gave no archive of ${name} (${result})")
      return()
    endif()
    file(SHA256 ${archive} hash)
    if(NOT hash STREQUAL sha256)
      file(REMOVE ${archive})
      message(FATAL_ERROR "The archive of ${name} has SHA-256 ${hash}, expected ${sha256}")
    endif()
    file(REMOVE_RECURSE ${unpacked})
    file(ARCHIVE_EXTRACT INPUT ${archive} DESTINATION ${folder} TOUCH)
    file(TOUCH ${unpacked}/unpacked-${caller})
  endif()
  set(${out} ${unpacked} PARENT_SCOPE)
endfunction()
