//! What the caller has decided.

use super::candidate::Plan;
use super::kind::OpKind;
use crate::{Delivery, Direction, OpSpec, Path, PathPreference, Summation, Taper};

/// What the caller of an operation has decided: it stays, and wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wishes {
    pub(crate) path: PathPreference,
    pub(crate) direction: Option<Direction>,
    pub(crate) delivery: Delivery,
    pub(crate) chunk_rows: Option<usize>,
    pub(crate) taper: Option<Taper>,
    /// [`crate::GemmAr`]: one-shot up to so many rows.
    pub(crate) one_shot_rows: Option<usize>,
    /// The sum is to be folded into the GEMM, if any tile allows that.
    pub(crate) must_fold: bool,
}

impl From<&OpSpec> for Wishes {
    fn from(spec: &OpSpec) -> Self {
        let &OpSpec { path, direction, delivery, chunk_rows, taper, one_shot_rows, summation, .. } = spec;
        let must_fold = summation == Summation::Folded;
        Self { path, direction, delivery, chunk_rows, taper, one_shot_rows, must_fold }
    }
}

impl Wishes {
    /// The path that is taken where no candidate is left.
    pub(crate) const fn taken(&self) -> Path {
        match self.path {
            PathPreference::Fused => Path::Fused,
            PathPreference::Chunked => Path::Chunked,
            PathPreference::CommunicationOnly => Path::CommunicationOnly,
            PathPreference::Auto | PathPreference::Unfused => Path::Unfused,
        }
    }

    /// What speaks against a plan for `m` rows.
    pub(crate) fn against(&self, op: OpKind, plan: &Plan, m: usize) -> Option<String> {
        let path = match self.path {
            PathPreference::Auto => None,
            PathPreference::Fused => Some(Path::Fused),
            PathPreference::Unfused => Some(Path::Unfused),
            // One-shot, there are no shards to go one by one.
            PathPreference::Chunked if plan.one_shot => Some(Path::Unfused),
            PathPreference::Chunked => Some(Path::Chunked),
            PathPreference::CommunicationOnly => Some(Path::CommunicationOnly),
        };
        if let Some(path) = path.filter(|&path| path != plan.path) {
            return Some(format!("the path {path} was asked for"));
        }
        // Tiles of a fused call are sent, whoever moves the rest.
        let moves = plan.delivery.is_none() || (op == OpKind::GemmAr && !plan.one_shot);
        if let Some(direction) = self.direction.filter(|&direction| moves && direction != plan.direction) {
            return Some(format!("{direction} was asked for"));
        }
        let delivery = plan.delivery.filter(|_| !plan.one_shot);
        if let Some(delivery) =
            delivery.filter(|&own| self.delivery != Delivery::Auto && own != self.delivery)
        {
            return Some(format!("{} tiles were asked for, not {delivery} ones", self.delivery));
        }
        let asked = self.one_shot_rows.filter(|_| op == OpKind::GemmAr)?;
        match plan.one_shot {
            false if m <= asked => Some(format!("one-shot was asked for up to {asked} rows")),
            true if m > asked => Some(format!("one-shot was asked for up to {asked} rows")),
            _ => None,
        }
    }
}
