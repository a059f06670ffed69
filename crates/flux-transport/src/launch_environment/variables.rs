//! Variables with a meaning, and the errors that name them.

use super::error::LaunchError;

/// What is known of the environment.
pub(super) struct Variables<'l> {
    lookup: &'l dyn Fn(&str) -> Option<String>,
}

/// A variable that is set.
#[derive(Clone, Debug)]
pub(super) struct Variable {
    pub(super) name: &'static str,
    pub(super) value: String,
}

impl<'l> Variables<'l> {
    pub(super) fn new(lookup: &'l dyn Fn(&str) -> Option<String>) -> Self {
        Variables { lookup }
    }

    /// A variable, if it is set and not empty.
    pub(super) fn get(&self, name: &'static str) -> Option<Variable> {
        let value = (self.lookup)(name)?.trim().to_owned();
        (!value.is_empty()).then_some(Variable { name, value })
    }

    /// The first of these that is set: some have an old and a new name.
    pub(super) fn first(&self, names: &[&'static str]) -> Option<Variable> {
        names.iter().find_map(|name| self.get(name))
    }

    /// A variable without which the one that is `present` means nothing.
    pub(super) fn need(
        &self,
        name: &'static str,
        present: &'static str,
        advice: &'static str,
    ) -> Result<Variable, LaunchError> {
        self.get(name).ok_or(LaunchError::Missing { present, missing: name, advice })
    }

    pub(super) fn is_true(&self, name: &'static str) -> bool {
        self.get(name).is_some_and(|variable| ["1", "true"].contains(&variable.value.to_lowercase().as_str()))
    }
}

impl Variable {
    pub(super) fn number(&self) -> Result<usize, LaunchError> {
        self.value.parse().map_err(|_| self.bad("a number, 0 or more"))
    }

    /// A number of ranks.
    pub(super) fn count(&self) -> Result<usize, LaunchError> {
        self.value.parse().ok().filter(|&count| count > 0).ok_or_else(|| self.bad("a number, 1 or more"))
    }

    pub(super) fn port(&self) -> Result<u16, LaunchError> {
        self.value.parse().ok().filter(|&port| port > 0).ok_or_else(|| self.bad("a port, from 1 to 65535"))
    }

    pub(super) fn bad(&self, wanted: &'static str) -> LaunchError {
        LaunchError::BadValue { variable: self.name, value: self.value.clone(), wanted }
    }
}
