pub(super) struct Layout;
