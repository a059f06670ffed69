use crate::description::Description;
use crate::environment::Environment;
use crate::python::package_folders;
use std::path::PathBuf;

/// What is tried, in this order.
#[derive(Clone, Debug)]
pub struct Search {
    paths: Vec<PathBuf>,
    is_override: bool,
}

impl Search {
    /// Where `library` is looked for in this process.
    pub fn usual(library: &Description) -> Self {
        Self::new(library, &Environment::read(library.variable))
    }

    /// Where `library` is looked for in `environment`; the page of this crate says where that is.
    pub fn new(library: &Description, environment: &Environment) -> Self {
        if let Some(path) = &environment.named_library {
            return Self { paths: vec![path.into()], is_override: true };
        }
        let names = library.loader_names.iter().map(PathBuf::from);
        let packages = package_folders(environment);
        let wheels = packages.iter().map(|folder| folder.join(library.in_site_packages));
        let paths = names.chain(wheels).chain(library.system_paths.iter().map(PathBuf::from)).collect();
        Self { paths, is_override: false }
    }

    /// These paths (or, without a slash, names for the dynamic loader) and no others.
    pub fn of<P: Into<PathBuf>>(paths: impl IntoIterator<Item = P>) -> Self {
        Self { paths: paths.into_iter().map(Into::into).collect(), is_override: false }
    }

    /// The paths, in order.
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// Whether the library's variable says what to load.
    pub fn is_override(&self) -> bool {
        self.is_override
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Version;

    static LIBRARY: Description = Description {
        name: "Example",
        variable: "EXAMPLE_LIBRARY",
        loader_names: &["libexample.so.2", "libexample.so"],
        in_site_packages: "example/lib/libexample.so.2",
        system_paths: &["/usr/local/example/lib/libexample.so.2"],
        wheel: "example",
        version_symbol: "example_version",
        oldest: Version::new(2, 3, 0),
    };

    #[test]
    fn names_come_first_then_wheels_then_the_systems_folders() {
        let search = Search::new(&LIBRARY, &Environment::default());
        let paths = search.paths();
        assert_eq!(paths[..2], ["libexample.so.2", "libexample.so"].map(PathBuf::from));
        assert_eq!(*paths.last().unwrap(), PathBuf::from(LIBRARY.system_paths[0]));
        assert!(paths[2..paths.len() - 1].iter().all(|path| path.ends_with(LIBRARY.in_site_packages)));
        assert!(paths.len() > 3 && !search.is_override());
    }

    #[test]
    fn the_variable_stands_alone() {
        let environment =
            Environment { named_library: Some("/opt/mine.so".into()), ..Environment::default() };
        let search = Search::new(&LIBRARY, &environment);
        assert_eq!(search.paths(), [PathBuf::from("/opt/mine.so")]);
        assert!(search.is_override());
    }
}
