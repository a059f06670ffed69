use crate::ncclResult_t;

/// What NCCL returned instead of `ncclSuccess`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The code.
    pub code: ncclResult_t,
    /// `ncclGetErrorString` of the code.
    pub text: String,
    /// `ncclGetLastError`: the last thing that went wrong in this process, which need not be this one. Often empty.
    pub last: String,
}

impl Error {
    /// Whether the call has only not ended yet.
    pub fn is_in_progress(&self) -> bool {
        self.code == ncclResult_t::ncclInProgress
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NCCL: {} (code {})", self.text, self.code.0)?;
        if self.last.is_empty() { Ok(()) } else { write!(f, "; its last error: {}", self.last) }
    }
}

impl std::error::Error for Error {}
