"""The web page: plain files, without a build step and without files of other sites."""
