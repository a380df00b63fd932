"""YAML files shipped with the package: pairs, profiles and calibrations."""
