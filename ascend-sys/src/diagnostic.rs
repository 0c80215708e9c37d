//! Reading the library's last error text: `EIxxxx` codes, their causes and remedies.
//!
//! HCCL's return code says little; the cause stands in a text with codes such as `EI0006`. Explanations here are this
//! project's words for what the vendor documents.
//!
//! ```
//! use ascend_sys::diagnostic::parse;
//! let reports = parse("[PID: 7] EI0006: 2026-01-01 Getting socket times out. Reason: rank 5");
//! assert_eq!(reports[0].code, "EI0006");
//! assert!(reports[0].explanation.unwrap().remedy.contains("HCCL_CONNECT_TIMEOUT"));
//! assert_eq!(reports[0].text, "2026-01-01 Getting socket times out. Reason: rank 5");
//! ```

use std::fmt;

/// What a code means and what to do.
#[derive(Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The code.
    pub code: &'static str,
    /// Why it comes up.
    pub cause: &'static str,
    /// What helps.
    pub remedy: &'static str,
}

/// One coded message found in the library's error text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The code, such as `EI0006`.
    pub code: String,
    /// The library's words after the code, up to the next code.
    pub text: String,
    /// What this crate knows about the code.
    pub explanation: Option<&'static Explanation>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.code)?;
        if !self.text.is_empty() {
            write!(f, ": {}", self.text)?;
        }
        match self.explanation {
            Some(known) => write!(f, " [cause: {}; remedy: {}]", known.cause, known.remedy),
            None => Ok(()),
        }
    }
}

/// Finds the coded messages of a text, in its order; a text without codes gives none.
#[must_use]
pub fn parse(text: &str) -> Vec<Report> {
    let places: Vec<usize> = code_places(text).collect();
    let ends = places.iter().skip(1).copied().chain([text.len()]);
    places.iter().zip(ends).map(|(&start, end)| report(&text[start..end])).collect()
}

/// What this crate knows about a code.
#[must_use]
pub fn explain(code: &str) -> Option<&'static Explanation> {
    EXPLANATIONS.iter().find(|known| known.code == code)
}

/// Two capitals, the first an E, and four digits.
const CODE_LEN: usize = 6;

fn code_places(text: &str) -> impl Iterator<Item = usize> {
    let bytes = text.as_bytes();
    (0..bytes.len().saturating_sub(CODE_LEN - 1)).filter(move |&at| {
        let code = &bytes[at..at + CODE_LEN];
        let shaped = code[0] == b'E' && code[1].is_ascii_uppercase() && code[2..].iter().all(u8::is_ascii_digit);
        let alone = |byte: Option<&u8>| !byte.is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_');
        shaped && alone(at.checked_sub(1).map(|before| &bytes[before])) && alone(bytes.get(at + CODE_LEN))
    })
}

/// `part` begins with a code.
fn report(part: &str) -> Report {
    let (code, rest) = part.split_at(CODE_LEN);
    let text = rest.trim_start_matches([')', ']', ':', ' ', '\t']).trim_end_matches(['(', '[', ' ', '\t', '\n', '\r']);
    Report { code: code.to_owned(), text: text.to_owned(), explanation: explain(code) }
}

macro_rules! explanations {
    ($($code:literal: $cause:literal, $remedy:literal;)*) => {
        /// Every code this crate explains, in the order of codes.
        pub const EXPLANATIONS: &[Explanation] = &[
            $(Explanation { code: $code, cause: $cause, remedy: $remedy }),*
        ];
    };
}

explanations! {
    "EE1002": "the runtime waited too long for a stream",
        "find the operation and the rank that did not arrive; only then raise HCCL_EXEC_TIMEOUT";
    "EI0001": "an environment variable has a value HCCL does not take",
        "correct the variable named in the text";
    "EI0002": "an operation waited for a peer longer than HCCL_EXEC_TIMEOUT (1836 s unless set)",
        "find the rank that did not call the same operation or died: its own log has the first error";
    "EI0003": "an argument of an operation is not valid",
        "correct the argument named in the text; a bad communicator configuration shows like this too";
    "EI0004": "the rank table cannot be read",
        "check the path, the JSON, and that its status is completed";
    "EI0005": "ranks passed different arguments to the same operation",
        "pass the same count, element type, operation and root on every rank";
    "EI0006": "a socket to a peer was not ready in time: a rank is late, took another branch, or cannot be reached",
        "see that every rank reaches this call, that HCCL_SOCKET_IFNAME names the right interface and port 16666 is \
         free; raise HCCL_CONNECT_TIMEOUT (120 s) for slow starts";
    "EI0007": "a resource is exhausted",
        "destroy communicators or streams that are not used, or lower HCCL_BUFFSIZE";
    "EI0008": "ranks run different versions of HCCL",
        "install the same CANN on every host";
    "EI0009": "a connection between devices could not be set up",
        "check the devices' network (/etc/hccn.conf) and the link state with npu-smi info -t topo";
    "EI0010": "a link between devices of one host could not be opened",
        "see that the devices are visible to this process and belong to the same host";
    "EI0011": "device memory for RDMA queues is exhausted",
        "free device memory or use fewer communicators or queue pairs";
    "EI0012": "a copy between devices failed, often because memory was freed under a running operation",
        "synchronise the stream before freeing buffers or destroying the communicator";
    "EI0013": "RDMA gave up sending: the peer died or the network between devices is broken",
        "look at the peer's log first, then at the network; HCCL_RDMA_TIMEOUT and HCCL_RDMA_RETRY_CNT bound the tries";
    "EI0014": "the rank table contradicts itself or the hosts",
        "check rank ids, device ids and device addresses";
    "EI0015": "ranks are missing at the root",
        "see which ranks the text names, whether they started, and whether they reach the root's address";
    "EI0016": "ranks have different security settings (TLS)",
        "set the TLS switch alike on every device";
    "EI0017": "the rank table's configuration does not suit the devices",
        "check its version against the chip";
    "EI0018": "a link of the unified bus reported an error",
        "look at the peer's log and the state of the links";
    "EI0019": "a port or address of the device cannot be bound",
        "end the process that holds it, or give HCCL_NPU_SOCKET_PORT_RANGE";
    "EI0020": "a port or address of the host cannot be bound",
        "end the process that holds it, or give HCCL_HOST_SOCKET_PORT_RANGE or HCCL_IF_BASE_PORT";
    "EI9999": "HCCL failed inside",
        "see the plog files below ~/ascend/log";
    "EJ0001": "the device-side process did not start: a previous run is not yet gone, or two use one card",
        "wait for the old process to end, and see that its certificate is valid";
    "EJ0002": "the device's network environment could not be set up",
        "check the device's network configuration";
    "EJ0003": "binding failed: the address is in use or is not this device's",
        "end the process that holds the port, or correct the device's address";
    "EJ0004": "the rank table and the device disagree on its address, or a rank id occurs twice",
        "compare the rank table with /etc/hccn.conf";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_every_code_in_order_with_its_own_text() {
        let text = "head\n(EI0002) notify wait of rank 3\nTraceBack\nEI0015: missing 5, 6\n";
        let reports = parse(text);
        let codes: Vec<&str> = reports.iter().map(|r| r.code.as_str()).collect();
        assert_eq!(codes, ["EI0002", "EI0015"]);
        assert_eq!(reports[0].text, "notify wait of rank 3\nTraceBack");
        assert_eq!(reports[1].text, "missing 5, 6");
    }

    #[test]
    fn what_only_looks_like_a_code_is_left_alone() {
        assert_eq!(parse("XEI0002 EI00021 EI_0002 ei0002 E10002 EI002"), []);
        assert_eq!(parse(""), []);
        assert_eq!(parse("EI000"), []);
    }

    #[test]
    fn unknown_codes_are_kept_without_explanation_and_text_may_be_of_any_script() {
        let reports = parse("错误EI4321：超时");
        assert_eq!(reports.len(), 1);
        assert_eq!((reports[0].code.as_str(), reports[0].text.as_str()), ("EI4321", "：超时"));
        assert_eq!(reports[0].explanation, None);
    }

    #[test]
    fn explanations_are_complete_sorted_and_unique() {
        for pair in EXPLANATIONS.windows(2) {
            assert!(pair[0].code < pair[1].code, "{} before {}", pair[0].code, pair[1].code);
        }
        for number in 1..=20 {
            let code = format!("EI{number:04}");
            assert!(explain(&code).is_some(), "{code}");
        }
        assert!(EXPLANATIONS.iter().all(|e| !e.cause.is_empty() && !e.remedy.is_empty()));
    }
}
