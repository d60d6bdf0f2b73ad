# Support for builds with CUDA, without CMake's own CUDA language, which would link every program with nvcc.
# Here nvcc makes objects, and the C compiler links them into one plugin, zk_cuda, with the static runtime;
# the driver is found at run time.
#
# Sets ZSHARD_WITH_CUDA and ZSHARD_GPU_ABI, and defines
#   zshard_cuda_sources(TARGET file.cu...)   compiles them into the target, which may belong to another folder
set(ZSHARD_WITH_CUDA OFF)
if(NOT ZSHARD_CUDA STREQUAL "OFF" AND NOT CMAKE_CROSSCOMPILING)
    if(ZSHARD_CUDA STREQUAL "ON")
        find_package(CUDAToolkit REQUIRED)
    else()
        find_package(CUDAToolkit QUIET)
    endif()
    # A toolkit alone is not enough: nvcc also needs a C++ compiler.
    if(CUDAToolkit_FOUND AND CUDAToolkit_NVCC_EXECUTABLE AND NOT DEFINED ZSHARD_NVCC_WORKS)
        file(WRITE ${CMAKE_BINARY_DIR}/nvcc-works.cu "__global__ void k(int *p) { *p = 1; }\n")
        execute_process(COMMAND ${CUDAToolkit_NVCC_EXECUTABLE} -std=c++20 -arch=sm_90 -c nvcc-works.cu
                                -o nvcc-works.o
            WORKING_DIRECTORY ${CMAKE_BINARY_DIR} RESULT_VARIABLE nvcc_rc OUTPUT_QUIET
            ERROR_VARIABLE nvcc_says)
        if(nvcc_rc EQUAL 0)
            set(ZSHARD_NVCC_WORKS ON CACHE INTERNAL "nvcc compiles")
        elseif(ZSHARD_CUDA STREQUAL "ON")
            message(FATAL_ERROR "ZSHARD_CUDA is ON, and nvcc does not compile:\n${nvcc_says}")
        endif()
    endif()
    if(ZSHARD_NVCC_WORKS)
        set(ZSHARD_WITH_CUDA ON)
    elseif(ZSHARD_CUDA STREQUAL "ON")
        message(FATAL_ERROR "ZSHARD_CUDA is ON, and there is no nvcc")
    endif()
endif()
message(STATUS "CUDA: ${ZSHARD_WITH_CUDA} ${CUDAToolkit_VERSION}")

# Two architectures, and PTX, which newer ones translate when they load it. With ZSHARD_CUDA_ONE, only the
# H100's: a minute less, for a build that is not installed. Exact arithmetic: no contraction, no flush to
# zero, division and square root as in IEEE 754.
# The stubs that nvcc generates for kernels keep one address each in a static variable. It needs no guard,
# and a guard would need the C++ runtime (-fno-threadsafe-statics).
set(ZSHARD_CUDA_FOR -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=[sm_90,compute_90])
if(ZSHARD_CUDA_ONE)
    set(ZSHARD_CUDA_FOR -gencode arch=compute_90,code=sm_90)
endif()
set(ZSHARD_NVCC_FLAGS -std=c++20 -O3 -fmad=false -ftz=false -prec-div=true -prec-sqrt=true ${ZSHARD_CUDA_FOR}
    --threads 2 -lineinfo -Xcompiler=-fPIC,-fvisibility=hidden,-Wall,-Wextra,-Wno-missing-field-initializers,-fno-threadsafe-statics)
if(ZSHARD_WERROR)
    list(APPEND ZSHARD_NVCC_FLAGS -Werror all-warnings -Xcompiler=-Werror)
endif()

if(NOT DEFINED CMAKE_CUDA_COMPILER_LAUNCHER) # CMake reads this variable only for its own CUDA language
    set(CMAKE_CUDA_COMPILER_LAUNCHER $ENV{CMAKE_CUDA_COMPILER_LAUNCHER})
endif()

function(zshard_cuda_sources target)
    foreach(source IN LISTS ARGN)
        set(object ${CMAKE_CURRENT_BINARY_DIR}/${source}.o)
        get_filename_component(folder ${object} DIRECTORY)
        get_filename_component(name ${source} NAME_WE)
        file(MAKE_DIRECTORY ${folder})
        add_custom_command(OUTPUT ${object}
            COMMAND ${CMAKE_CUDA_COMPILER_LAUNCHER} ${CUDAToolkit_NVCC_EXECUTABLE} ${ZSHARD_NVCC_FLAGS}
                    -D_GNU_SOURCE -I${CMAKE_SOURCE_DIR} -MD -MF ${object}.d -MT ${object}
                    -c ${CMAKE_CURRENT_SOURCE_DIR}/${source} -o ${object}
            DEPENDS ${source} DEPFILE ${object}.d COMMENT "Building CUDA object ${source}.o" VERBATIM)
        # A custom command must belong to a target of its own folder.
        add_custom_target(${target}_${name} DEPENDS ${object})
        add_dependencies(${target} ${target}_${name})
        set_source_files_properties(${object} TARGET_DIRECTORY ${target} PROPERTIES
            EXTERNAL_OBJECT ON GENERATED ON)
        target_sources(${target} PRIVATE ${object})
    endforeach()
endfunction()

# The ABI between the GPU plugin and its loader, as one word: the release, and a hash of the headers that
# define it. When one of these headers changes, the build is configured again.
set(sums "")
foreach(header base/err.h base/plan.h base/util.h kernels/gpu.h kernels/gpu_own.h kernels/gpu/gpu_priv.h
        kernels/zk.h kernels/zk_page.h examples/gpt/dev/kern.h)
    file(SHA256 ${CMAKE_SOURCE_DIR}/${header} sum)
    string(APPEND sums ${sum})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${header})
endforeach()
string(SHA256 sums "${sums}")
string(SUBSTRING ${sums} 0 16 sums)
set(ZSHARD_GPU_ABI ${PROJECT_VERSION}-${sums})
