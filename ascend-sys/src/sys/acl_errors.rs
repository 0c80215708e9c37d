//! Return codes of AscendCL.

use super::codes::codes;

codes! {
    /// `aclError`: what an AscendCL call returns. 1xxxxx and 107xxx blame the caller, 2xxxxx resources, 5xxxxx the
    /// device or the library.
    AclError(i32) {
        SUCCESS = 0, "ACL_SUCCESS", "the call succeeded";
        INVALID_PARAM = 100000, "ACL_ERROR_INVALID_PARAM", "an argument is not valid";
        REPEAT_INITIALIZE = 100002, "ACL_ERROR_REPEAT_INITIALIZE", "AscendCL is initialised already",
            "initialise once a process; another library in it may have done so";
        RT_INVALID_DEVICE_ID = 107001, "ACL_ERROR_RT_INVALID_DEVICEID", "no device has this number",
            "compare it with the device count and ASCEND_RT_VISIBLE_DEVICES";
        RT_CONTEXT_NULL = 107002, "ACL_ERROR_RT_CONTEXT_NULL", "this thread has no device",
            "set the device on every thread that makes calls";
        RT_STREAM_CONTEXT = 107003, "ACL_ERROR_RT_STREAM_CONTEXT", "the stream belongs to another context",
            "make the stream's context current before using it";
        WAIT_TIMEOUT = 107019, "ACL_ERROR_WAIT_TIMEOUT", "waiting took longer than allowed",
            "find the rank that did not arrive; raise the limit only if the work is that long";
        TASK_TIMEOUT = 107020, "ACL_ERROR_RT_TASK_TIMEOUT", "a task on the device took longer than allowed",
            "in a collective: a peer is missing or died; see the text for an EI code";
        DEVICE_TASK_ABORT = 107022, "ACL_ERROR_RT_DEVICE_TASK_ABORT", "the device's tasks were aborted",
            "destroy the streams and communicators of this device and build new ones";
        STREAM_ABORT = 107023, "ACL_ERROR_RT_STREAM_ABORT", "the stream was aborted",
            "destroy the stream and build a new one";
        BAD_ALLOC = 200000, "ACL_ERROR_BAD_ALLOC", "host memory is exhausted";
        RT_MEMORY_ALLOCATION = 207001, "ACL_ERROR_RT_MEMORY_ALLOCATION", "device memory is exhausted",
            "free memory or lower HCCL_BUFFSIZE: each communicator holds twice that many MB";
        RT_NO_DEVICE = 207004, "ACL_ERROR_RT_NO_DEVICE", "no device is there",
            "see whether npu-smi info lists one, and whether the container was given it";
        RT_DEVICE_OOM = 207018, "ACL_ERROR_RT_DEVICE_OOM", "the device ran out of memory",
            "free memory or lower HCCL_BUFFSIZE: each communicator holds twice that many MB";
        RT_LOST_HEARTBEAT = 507010, "ACL_ERROR_RT_LOST_HEARTBEAT", "the device stopped answering",
            "see npu-smi info; the device may need a reset by its administrator";
        RT_AICORE_TIMEOUT = 507014, "ACL_ERROR_RT_AICORE_TIMEOUT", "an AI core took longer than allowed";
        RT_STREAM_SYNC_TIMEOUT = 507046, "ACL_ERROR_RT_STREAM_SYNC_TIMEOUT", "synchronising a stream took longer than allowed",
            "find the rank that did not arrive: the stuck operation names no culprit";
        RT_EVENT_SYNC_TIMEOUT = 507047, "ACL_ERROR_RT_EVENT_SYNC_TIMEOUT", "synchronising an event took longer than allowed",
            "find the rank that did not arrive: the stuck operation names no culprit";
        RT_FFTS_PLUS_TIMEOUT = 507048, "ACL_ERROR_RT_FFTS_PLUS_TIMEOUT", "a collective's tasks took longer than allowed",
            "a peer is missing or died; see the text for EI0002 and the other ranks' logs";
        RT_DEVICE_MEM_ERROR = 507053, "ACL_ERROR_RT_DEVICE_MEM_ERROR", "device memory failed",
            "take the device out of service and see its error log";
        RT_HBM_MULTI_BIT_ECC_ERROR = 507054, "ACL_ERROR_RT_HBM_MULTI_BIT_ECC_ERROR",
            "device memory lost more bits than it can correct", "take the device out of service and see its error log";
        RT_LINK_ERROR = 507056, "ACL_ERROR_RT_LINK_ERROR", "a link between devices failed",
            "see the link state with npu-smi info -t topo";
        RT_SUSPECT_REMOTE_ERROR = 507057, "ACL_ERROR_RT_SUSPECT_REMOTE_ERROR", "another device is suspected to have failed",
            "look at the logs of the peers of this rank";
    }
}
